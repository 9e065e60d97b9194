"""Runs random schedules.

    python benchmarks/schedules [--count 1000] [--seed 0] [--only NUMBER] [--script NAME] [--jobs N] [--plant NAME]

Ranks are forks of a process that has torch, and sleep most of the time: some schedules may run at once. Exits with 1 if
anything was wrong; each is told, and can be repeated (`--seed S --only NUMBER`), though what the system adds to the
delays can't.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # read when torch is imported
if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).parents[1])

from schedules.play import PLANTS, SCRIPTS, Schedule, play, prepare


def main(arguments: Sequence[str] | None = None) -> int:
    """Run schedules, and say what was wrong; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="number of one schedule")
    parser.add_argument("--script", help="name of one script")
    parser.add_argument("--jobs", type=int, default=1, help="schedules at a time")
    parser.add_argument("--plant", choices=PLANTS, help="a mistake to plant into each rank")
    args = parser.parse_args(arguments)
    names = sorted(path.name for path in SCRIPTS.glob("[!_]*.py") if args.script in (None, path.stem))
    numbers = range(args.count) if args.only is None else [args.only]
    schedules = [Schedule.drawn(names, args.seed, number) for number in numbers]
    wrong, began = Counter[str](), time.monotonic()
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(["torch._dynamo", "dp2ddp_runtime"])  # the ranks need them
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(args.jobs, forking) as pool:
        pool.submit(prepare, Path(folder), {each.script for each in schedules}).result()
        for schedule, found in zip(
            schedules, pool.map(partial(play, folder=Path(folder), plant=args.plant), schedules)
        ):
            if found:
                wrong[schedule.script] += 1
                print(schedule, *found, sep="\n    ", flush=True)
    print(f"{len(numbers)} schedules in {time.monotonic() - began:.0f} s: {wrong.total()} wrong", dict(wrong))
    return int(wrong.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
