"""Mistakes planted into right conversions: `dp2ddp verify` has to find each, at its step, and to name it.

    python benchmarks/mistakes [--only KIND ...] [--script NAME ...] [--brief] [--json FILE] [--jobs N]
    python benchmarks/mistakes --healthy [--seeds 3]

Each script's conversion is the codemod's, with one text replaced (`catalogue/`). What has to be said of it was decided
when it was planted: that the two differ, the first optimizer step whose update does, and words for the cause. Lines
begin with what is right: `f`ound, at the right `s`tep, `n`amed. Verdicts other than "differ" are wrong, where nothing
is said to be wrong with the script.

`--healthy` runs the conversions as they are, with several seeds: there, all verdicts other than "agree" are wrong.
Exits with 1 if a mistake wasn't found, or there was a false alarm.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).parents[1])
    # This checkout's codemod, also where another one is installed.
    sys.path[1:1] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "runtime")]

from mistakes import table
from mistakes.bases import BASES, converted, digits
from mistakes.catalogue import MISTAKES
from mistakes.planted import Mistake
from mistakes.table import Healthy, Judged
from mistakes.trial import verify

_Item = TypeVar("_Item")
_Outcome = TypeVar("_Outcome", Judged, Healthy)
_FIRST_SEED = 101  # of the healthy runs: none that a script has by itself


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    kinds = sorted({mistake.kind for mistake in MISTAKES})
    parser.add_argument("--only", nargs="+", default=[], metavar="KIND", choices=kinds, help="kinds of mistakes")
    parser.add_argument("--script", nargs="+", default=[], metavar="NAME", choices=sorted(BASES), help="scripts")
    parser.add_argument("--brief", action="store_true", help="one mistake of each kind")
    parser.add_argument("--healthy", action="store_true", help="scripts without mistakes")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each script without mistakes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was said")
    parser.add_argument("--jobs", type=int, default=1, help="verifications at a time")
    parser.add_argument("--list", action="store_true", help="list what there is, and run nothing")
    return parser.parse_args(arguments)


def chosen(kinds: Sequence[str], scripts: Sequence[str], brief: bool = False) -> list[Mistake]:
    """The mistakes of these kinds, in these scripts; of all where none is named.

    Args:
        brief: the first of each kind.
    """
    found = [
        mistake
        for mistake in MISTAKES
        if (not kinds or mistake.kind in kinds) and (not scripts or mistake.script in scripts)
    ]
    first = {mistake.kind: mistake for mistake in reversed(found)}
    return [mistake for mistake in found if not brief or mistake is first[mistake.kind]]


def _each(run: Callable[[_Item], _Outcome], items: Iterable[_Item], jobs: int) -> Iterator[_Outcome]:
    """What came of each; told as it comes."""
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for outcome in pool.map(run, items):
                print(outcome.line, flush=True)
                yield outcome
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _in_folder(folder: Path, script: str, conversion: str, seed: int | None) -> Any:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        return verify(script, conversion, Path(own), folder / "digits" / "few", seed)


def _mistakes(folder: Path, mistakes: Sequence[Mistake], jobs: int) -> list[Judged]:
    texts = {mistake: mistake.text() for mistake in mistakes}  # two threads that convert get in each other's way

    def run(mistake: Mistake) -> Judged:
        return Judged(mistake, _in_folder(folder, mistake.script, texts[mistake], None))

    return list(_each(run, mistakes, jobs))


def _healthy(folder: Path, scripts: Sequence[str], seeds: int, jobs: int) -> list[Healthy]:
    def run(item: tuple[str, int]) -> Healthy:
        script, seed = item
        return Healthy(script, seed, _in_folder(folder, script, converted(script), seed))

    return list(_each(run, [(script, _FIRST_SEED + seed) for script in scripts for seed in range(seeds)], jobs))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run verifications; returns the exit code."""
    given = _parse(arguments)
    mistakes = chosen(given.only, given.script, given.brief)
    if given.list:
        print("\n".join(f"{mistake.name}: step {mistake.step or '-'}" for mistake in mistakes))
        return 0
    outcomes: Sequence[Judged] | Sequence[Healthy]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        digits(folder / "digits")
        if given.healthy:
            runs = outcomes = _healthy(folder, given.script or list(BASES), given.seeds, given.jobs)
            print(f"\n{table.of_healthy(runs)}")
            right = all(run.right for run in runs)
        else:
            judged = outcomes = _mistakes(folder, mistakes, given.jobs)
            print(f"\n{table.of_mistakes(judged)}")
            right = all(each.found for each in judged)
    if given.json is not None:
        given.json.write_text(json.dumps([outcome.as_data() for outcome in outcomes], indent=2) + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    os.nice(5)  # whoever shares the machine comes first
    sys.exit(main())
