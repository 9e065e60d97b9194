"""Runs random schedules.

    python benchmarks/schedules [--count 1000] [--seed 0] [--only NUMBER] [--script NAME] [--plant NAME]

Ranks are forks of this process, which has torch. Exits with 1 if anything was wrong; each is told, and can be repeated
(`--seed S --only NUMBER`), though what the system adds to the delays can't.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # read when torch is imported
sys.path.insert(0, str(Path(__file__).parents[1]))

import dp2ddp_runtime  # noqa: F401 - for the ranks
import torch._dynamo  # noqa: F401 - the ranks need it, and importing it takes seconds

from schedules.play import SCRIPTS, Schedule, plants, play, prepare


def main() -> int:
    """Run schedules, and say what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="number of one schedule")
    parser.add_argument("--script", help="name of one script")
    parser.add_argument("--plant", choices=plants(), help="a mistake to plant into each rank")
    args = parser.parse_args()
    names = sorted(path.name for path in SCRIPTS.glob("[!_]*.py") if args.script in (None, path.stem))
    numbers = range(args.count) if args.only is None else [args.only]
    wrong, began = Counter[str](), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for number in numbers:
            schedule = Schedule.drawn(names, args.seed, number)
            if found := play(schedule, Path(folder), plants().get(args.plant)):
                wrong[schedule.script] += 1
                print(schedule, *found, sep="\n    ", flush=True)
    print(f"{len(numbers)} schedules in {time.monotonic() - began:.0f} s: {wrong.total()} wrong", dict(wrong))
    return int(wrong.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
