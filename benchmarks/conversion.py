"""Conversion time as a ratio to libcst's own floor for the same file: parse, one plain visitor pass, `code`.

Both are timed side by side in one process, in turn, so that the machine's load falls on both; the ratio is of medians.

    python benchmarks/conversion.py [--repeats 7] [--max 4] [--project] [--max-project 1.5] [--whole] [FILE ...]

Without files: the fixtures, and a script of 300 lines made from them. With `--max` it exits with 1 above that ratio.
With `--project` or `--max-project`: a repository of 100 files, three of which use DataParallel, as a ratio to these
three converted alone. With `--whole`: processor time of whole processes on the script of 300 lines, with Python's
bytecode in the cache and without.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import libcst as cst

from dp2ddp.convert import programs
from dp2ddp.convert.pipeline import convert_source
from dp2ddp.project import entries, tree
from dp2ddp.project import text_files as reading
from dp2ddp.project.modules import Layout
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
    assert convert_source(text, "train.py", Options(allow_ddp=True)).changed


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


def originals() -> list[Path]:
    """The fixtures that are one script."""
    return sorted(path.with_name("train.py") for path in FIXTURES.glob("*/train_ddp.py"))


def scripts(files: Sequence[Path]) -> list[tuple[str, str]]:
    """Names and texts of what is measured."""
    if files:
        return [(path.name, reading.read(str(path)).text) for path in files]
    fixtures = originals()
    found = [(path.parent.name, reading.read(str(path)).text) for path in fixtures]
    longest = max((text for _, text in found), key=lambda text: len(text.splitlines()))
    return [*found, (f"{LONG} lines", long_script(longest))]


def project(folder: Path) -> list[str]:
    """Writes a repository of 100 files, three of which use `DataParallel`; returns these.

    Each of the three imports about ten of the others, all have 300 lines.
    """
    texts = [
        long_script(path.read_text())
        for path in sorted(path.with_name("train.py") for path in FIXTURES.glob("*/train_ddp.py"))
    ]
    wrapping = [f"train_{number}.py" for number in range(3)]
    for number, (name, text) in enumerate(zip(wrapping, texts)):
        (folder / name).write_text(f"{text}\n\nimport package.module_{20 + number}\n")
    for number in range(97):
        imports = "".join(f"from package.module_{number // 2 + step} import helper_{step}\n" for step in range(3))
        (folder / "package").mkdir(exist_ok=True)
        (folder / "package" / f"module_{number}.py").write_text(imports + long_script(""))
    return wrapping


def measure_project(repeats: int) -> Result:
    """Times the conversion of the whole repository, from disk to text, against that of its three files alone."""
    seconds: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wrapping = project(folder)
        alone = [(folder / name).read_text() for name in wrapping]

        def convert_alone(_: str) -> None:
            for text in alone:
                conversion(text)

        def convert_all(_: str) -> None:
            sources = tree.scan(folder).sources()
            layout = Layout(sources)
            found = entries.guess(sources, layout)
            followed = [programs.follow(sources, layout, path) for path in found.entries]
            outcome = programs.convert(followed, Options(), lenient=True)
            assert outcome.changed() == wrapping

        for _ in range(repeats + 1):
            for work, times in zip((convert_alone, convert_all), seconds):
                times.append(_seconds(work, ""))
    first, second = (statistics.median(times[1:]) for times in seconds)
    return Result("3 of 100 files", sum(len(text.splitlines()) for text in alone), first, second)


_FLOOR = """
import sys, libcst
class Plain(libcst.CSTTransformer): pass
text = open(sys.argv[1]).read()
assert libcst.parse_module(text).visit(Plain()).code == text
"""


def measure_whole(repeats: int, *, cached: bool) -> Result:
    """Processor seconds of processes that do nothing but libcst's floor, and of `dp2ddp convert`; in turn.

    Args:
        cached: Python finds the bytecode of all modules.
    """
    _, text = scripts([])[-1]
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch, "train.py")
        script.write_text(text)
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(Path(scratch, "cache"))}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if not cached:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        convert = ["-m", "dp2ddp", "convert", str(script), "-o", str(Path(scratch, "out.py")), "--force", "-q"]
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(repeats + 1):
            for arguments, times in zip((["-c", _FLOOR, str(script)], convert), seconds):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run([sys.executable, *arguments], env=environment, check=True)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    first, second = (statistics.median(times[1:]) for times in seconds)
    return Result(f"whole, {'warm' if cached else 'cold'}", len(text.splitlines()), first, second)


def _report_project(result: Result, limit: float | None) -> int:
    print(f"{result.name}: {result.conversion:.2f} s, {result.ratio:.2f} times the {result.floor:.2f} s of the three")
    if limit is not None and result.ratio > limit:
        print(f"the ratio {result.ratio:.2f} is above {limit}", file=sys.stderr)
        return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 if a ratio is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--max", type=float, dest="limit", help="exit with 1 above this ratio")
    parser.add_argument("--project", action="store_true", help="measure a repository instead")
    parser.add_argument("--max-project", type=float, metavar="RATIO", help="the same, with a limit")
    parser.add_argument("--whole", action="store_true", help="measure whole processes instead")
    options = parser.parse_args(arguments)
    if options.project or options.max_project is not None:
        return _report_project(measure_project(options.repeats), options.max_project)
    print(f"{'script':24} {'lines':>5} {'floor ms':>9} {'conversion ms':>14} {'ratio':>6}")
    results = []
    if options.whole:
        measured = (measure_whole(options.repeats, cached=cached) for cached in (True, False))
    else:
        measured = (measure(name, text, options.repeats) for name, text in scripts(options.files))
    for result in measured:
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
