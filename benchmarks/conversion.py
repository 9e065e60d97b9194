"""Conversion time as a ratio to libcst's own floor for the same file: parse, one plain visitor pass, `code`.

    python benchmarks/conversion.py [--repeats 7] [--max 1.6] [FILE ...]

Both are timed in turn in one process, so that the machine's load falls on both; the ratio is of medians. Without files:
the fixtures that are one script, the longest of them with functions behind it that make 300, 1,000 and 48,000 lines.
With `--max` it exits with 1 if a script of 300 lines, or a given file, is above that ratio.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import libcst as cst

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.project import text_files
from dp2ddp.rules import Options

FIXTURES = Path(__file__).parents[1] / "fixtures"
_FILLER = '''

def helper_{0}(values, scale=1.0):
    """Scales values and keeps the finite ones."""
    kept = [value * scale for value in values if value == value]
    if not kept:
        return 0.0, len(values)
    return sum(kept) / len(kept), len(values) - len(kept)
'''


def floor(text: str) -> None:
    """What any libcst codemod has to do."""
    assert cst.parse_module(text).visit(cst.CSTTransformer()).code


def conversion(text: str) -> None:
    """What dp2ddp does, from text to text."""
    assert convert_source(text, "train.py", Options(allow_ddp=True)).changed


def seconds(work: Callable[[str], None], text: str) -> float:
    """What it takes once."""
    gc.collect()
    start = time.perf_counter()
    work(text)
    return time.perf_counter() - start


def measure(text: str, repeats: int) -> list[float]:
    """Median seconds of libcst's floor, and of the conversion."""
    # Each round's text is another: what a user converts was never parsed before.
    texts = [f"{text}# {number}\n" for number in range(repeats + 1)]
    rounds = [[seconds(work, each) for work in (floor, conversion)] for each in texts]
    # The first round imports what is needed; it counts where it is the only one.
    return [statistics.median(times) for times in zip(*rounds[-repeats:])]


def longer(text: str, lines: int) -> str:
    """`text` with as many functions behind it as make that many lines."""
    missing = lines - text.count("\n")
    return text + "".join(_FILLER.format(number) for number in range(-(-missing // _FILLER.count("\n"))))


def scripts(files: list[Path]) -> dict[str, str]:
    """What is measured, by name."""
    paths = files or sorted(path.with_name("train.py") for path in FIXTURES.glob("*/train_ddp.py"))
    found = {path.name if files else path.parent.name: text_files.read(str(path)).text for path in paths}
    longest = max(found.values(), key=lambda text: text.count("\n"))
    return found if files else {**found, **{f"{n} lines": longer(longest, n) for n in (300, 1000, 48000)}}


def main() -> int:
    """Print the table; 1 if a ratio is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--max", type=float, dest="limit", help="exit with 1 above this ratio")
    given = parser.parse_args()
    print(f"{'script':24} {'lines':>5} {'floor ms':>9} {'conversion ms':>14} {'ratio':>6}")
    worst = 0.0
    for name, text in scripts(given.files).items():
        lines = text.count("\n")
        first, second = measure(text, given.repeats if lines < 10_000 else 0)
        print(f"{name:24} {lines:5} {first * 1e3:9.1f} {second * 1e3:14.1f} {second / first:6.2f}", flush=True)
        worst = max(worst, second / first if given.files or name == "300 lines" else 0)
    if given.limit is not None and worst > given.limit:
        print(f"the ratio {worst:.2f} is above {given.limit}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
