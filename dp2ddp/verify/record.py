"""Run a script as `__main__` and record it: `python -m dp2ddp.verify.record --out DIR [options] -- script.py args`.

The recording (see `recorder`) goes to `DIR/rank<r>`, r being `RANK` under torchrun and 0 otherwise. The script is run
as Python runs it: same `sys.argv`, `sys.path[0]`, working directory, output and exit code.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from .recorder import Recorder, StepsDone
from .stand_in import emulate, hide_cuda


def main(argv: Sequence[str] | None = None) -> None:
    """The command line. Raises whatever the script raises."""
    parser = argparse.ArgumentParser(prog="python -m dp2ddp.verify.record", description=__doc__)
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--emulate", type=int, metavar="N", help="nn.DataParallel gets N replicas on one device")
    parser.add_argument("--steps", type=int, metavar="K", help="end the script after K optimizer steps")
    parser.add_argument("--float64", action="store_true", help="make float64 torch's default dtype")
    parser.add_argument("--cpu", type=int, metavar="N", help="no CUDA, though torch.cuda.device_count() says N")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    if options.cpu is not None:
        hide_cuda(options.cpu)
    if options.emulate is not None:
        emulate(options.emulate)
    if options.float64:
        torch.set_default_dtype(torch.float64)
    sys.argv = [str(options.script), *options.arguments]
    sys.path[0] = str(options.script.resolve().parent)
    try:
        with Recorder(options.out / f"rank{os.environ.get('RANK', '0')}", options.steps):
            runpy.run_path(str(options.script), run_name="__main__")
    except StepsDone:
        sys.exit(0)


if __name__ == "__main__":
    main()
