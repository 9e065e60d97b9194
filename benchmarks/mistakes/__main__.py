"""Mistakes planted into right conversions: `dp2ddp verify` has to find each, at its step, and to name it.

    python benchmarks/mistakes [--only KIND ...] [--script NAME ...] [--jobs N]
    python benchmarks/mistakes --healthy [--seeds 3]

Each script's conversion is the codemod's, with one text replaced (`catalogue.txt`). What has to be said of it was
decided when it was planted: that the two differ, the first optimizer step whose update does, and words for the cause.
Lines begin with what is right: `f`ound, at the right `s`tep, `n`amed.

`--healthy` runs the conversions as they are, with several seeds: there, all verdicts other than "agree" are wrong.
Exits with 1 if a mistake wasn't found, or there was a false alarm.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).parents[1])
    # This checkout's codemod, also where another one is installed.
    sys.path[1:1] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "runtime")]

from mistakes.trial import BASES, Mistake, converted, digits, mistakes, verify

_FIRST_SEED = 101  # of the healthy runs: none that a script has by itself


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="+", metavar="KIND", choices=[each.kind for each in mistakes()])
    parser.add_argument("--script", nargs="+", metavar="NAME", choices=sorted(BASES), help="scripts")
    parser.add_argument("--healthy", action="store_true", help="scripts without mistakes")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each script without mistakes")
    parser.add_argument("--jobs", type=int, default=1, help="verifications at a time")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run verifications, and print a line for each; returns the exit code."""
    given = _parse(arguments)
    items: list[tuple[Mistake | None, str, int | None, str]]
    if given.healthy:
        scripts, seeds = given.script or list(BASES), range(_FIRST_SEED, _FIRST_SEED + given.seeds)
        items = [(None, script, seed, converted(script)) for script in scripts for seed in seeds]
    else:
        chosen = [each for each in mistakes() if not given.only or each.kind in given.only]
        # Two threads that convert get in each other's way.
        items = [(each, each.script, None, each.text()) for each in chosen if each.script in (given.script or BASES)]
    with tempfile.TemporaryDirectory() as folder:
        data = digits(Path(folder, "digits"))

        def run(item: tuple[Mistake | None, str, int | None, str]) -> str:
            mistake, script, seed, text = item
            with tempfile.TemporaryDirectory(dir=folder) as own:
                said = verify(script, text, Path(own), data, seed)
            cause = " ".join(said.cause.splitlines()[:2])
            if mistake is None:
                mark, name, step = ("a" if said.verdict == "agree" else "-"), f"{script}, seed {seed}", "-"
            else:
                mark, name, step = said.judged(mistake), f"{mistake.kind} ({script})", str(mistake.step or "-")
            at = f"step {said.step or '-'} (right: {step})"
            print(f"{mark} {name}: {said.verdict}, {at}, {said.seconds:.0f} s: {cause}", flush=True)
            return mark

        with ThreadPoolExecutor(given.jobs) as pool:
            marks = list(pool.map(run, items))
    told = {"a": "agree"} if given.healthy else {"f": "found", "s": "at the right step", "n": "named"}
    print(f"{len(marks)}: " + ", ".join(f"{sum(m in mark for mark in marks)} {word}" for m, word in told.items()))
    return 0 if all(mark[0] != "-" for mark in marks) else 1


if __name__ == "__main__":
    os.nice(5)  # whoever shares the machine comes first
    sys.exit(main())
