"""The command ``dp2ddp``, also as ``python -m dp2ddp``."""

import atexit
import gc
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


def run() -> None:
    """Run the command, and exit as it does."""
    atexit.register(_leave_it)
    main(prog_name="dp2ddp")


def _leave_it() -> None:
    """When the interpreter ends it looks for garbage in all that there is: trees of code, torch; that takes long."""
    if "triton" not in sys.modules:  # which would complain of that
        gc.freeze()


if __name__ == "__main__":
    run()
