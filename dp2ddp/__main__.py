"""``python -m dp2ddp`` is the command ``dp2ddp``."""

import os
import sys

# `python -m` looks for modules in the current folder first, which is the user's project: a `click.py` there would be
# run. (Where this package itself lies in the current folder, that is where it is developed.)
_here = os.path.realpath(".")
if (
    not getattr(sys.flags, "safe_path", False)
    and os.path.realpath(sys.path[0]) == _here
    and os.path.dirname(os.path.dirname(os.path.realpath(__file__))) != _here
):
    del sys.path[0]

from dp2ddp.cli import main  # noqa: E402 - not before the path is safe

if __name__ == "__main__":
    main(prog_name="dp2ddp")
