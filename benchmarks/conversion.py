"""Conversion time as a ratio to libcst's own floor for the same file: parse, one plain visitor pass, `code`.

Both are timed side by side in one process, in turn, so that the machine's load falls on both; the ratio is of medians.

    python benchmarks/conversion.py [--repeats 7] [--max 4] [FILE ...]

Without files: the fixtures, and a script of 300 lines made from them. With `--max` it exits with 1 above that ratio.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import libcst as cst

from dp2ddp import project
from dp2ddp.pipeline import convert_source
from dp2ddp.rules import Options

FIXTURES = Path(__file__).parents[1] / "fixtures"
LONG = 300


class Result(NamedTuple):
    """Median seconds for one file."""

    name: str
    lines: int
    floor: float
    conversion: float

    @property
    def ratio(self) -> float:
        return self.conversion / self.floor


class _Plain(cst.CSTTransformer):
    """A visitor that does nothing."""


def floor(text: str) -> None:
    """What any libcst codemod has to do."""
    assert cst.parse_module(text).visit(_Plain()).code


def conversion(text: str) -> None:
    """What dp2ddp does, from text to text."""
    assert convert_source(text, "train.py", Options()).changed


def measure(name: str, text: str, repeats: int) -> Result:
    """Times both on one script, in turn."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats + 1):
        for work, times in zip((floor, conversion), seconds):
            times.append(_seconds(work, text))
    # The first round imports modules and fills caches.
    first, second = (statistics.median(times[1:]) for times in seconds)
    return Result(name, len(text.splitlines()), first, second)


def _seconds(work: Callable[[str], None], text: str) -> float:
    gc.collect()
    start = time.perf_counter()
    work(text)
    return time.perf_counter() - start


def long_script(text: str) -> str:
    """`text` with as many functions after it as make 300 lines."""
    filler = (
        "\n\ndef helper_{0}(values, scale=1.0):\n"
        '    """Scales values and keeps the finite ones."""\n'
        "    kept = [value * scale for value in values if value == value]\n"
        "    if not kept:\n"
        "        return 0.0, len(values)\n"
        "    return sum(kept) / len(kept), len(values) - len(kept)\n"
    )
    number = 0
    while len(text.splitlines()) < LONG:
        text += filler.format(number)
        number += 1
    return text


def scripts(files: Sequence[Path]) -> list[tuple[str, str]]:
    """Names and texts of what is measured."""
    if files:
        return [(path.name, project.read(str(path)).text) for path in files]
    fixtures = sorted(FIXTURES.glob("*/train.py"))
    found = [(path.parent.name, project.read(str(path)).text) for path in fixtures]
    longest = max((text for _, text in found), key=lambda text: len(text.splitlines()))
    return [*found, (f"{LONG} lines", long_script(longest))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 if a ratio is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--max", type=float, dest="limit", help="exit with 1 above this ratio")
    options = parser.parse_args(arguments)
    print(f"{'script':24} {'lines':>5} {'floor ms':>9} {'conversion ms':>14} {'ratio':>6}")
    results = []
    for name, text in scripts(options.files):
        result = measure(name, text, options.repeats)
        results.append(result)
        times = f"{result.floor * 1e3:9.1f} {result.conversion * 1e3:14.1f} {result.ratio:6.2f}"
        print(f"{result.name:24} {result.lines:5} {times}", flush=True)
    worst = max(result.ratio for result in results)
    if options.limit is not None and worst > options.limit:
        print(f"the ratio {worst:.2f} is above {options.limit}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
