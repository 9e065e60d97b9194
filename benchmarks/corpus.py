"""Converts whole repositories that nobody here has prepared, and counts what came of it.

Each DIR is a repository, or a folder of repositories. Scripts are guessed as `dp2ddp convert DIR` does; each group of
scripts that share files is converted in memory, and its output is checked: whether it compiles, which calls of
`DataParallel` are left in it, and whether converting it once more changes anything. Nothing is written.

    python benchmarks/corpus.py DIR... [--json FILE] [--markdown FILE] [--allow-ddp] [--processes N]
        [--min PERCENT]

Exit codes: 0; 1 where a conversion crashed, or with `--min` where fewer scripts are converted in full.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from dp2ddp.convert import programs
from dp2ddp.convert.pipeline import Conversion, convert_files
from dp2ddp.convert.programs import Program
from dp2ddp.errors import BadInput
from dp2ddp.project import entries, tree, wrapcalls
from dp2ddp.project.modules import Layout
from dp2ddp.rules import Options
from dp2ddp.source import syntax


@dataclass
class Script:
    """What came of one training script: one that is started and reaches a wrap.

    Attributes:
        repository, path: which one.
        refused: why it can't be converted for reasons of its own, such as Python 2; empty if it can.
        crash: the end of the traceback of a mistake in dp2ddp; empty without one.
        changed: the number of files that changed.
        compiled: every file of the output is Python.
        wraps_left: the calls of `DataParallel` left in the output, as ``file:line`` of the output.
        notes: how many of each id.
        lines: of the diff, added and taken away.
        idempotent: converting the output changes nothing.
        seconds: of the conversion, shared evenly by scripts that are converted together.
    """

    repository: str
    path: str
    refused: str = ""
    crash: str = ""
    changed: int = 0
    compiled: bool = False
    wraps_left: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)
    lines: int = 0
    idempotent: bool = False
    seconds: float = 0.0

    @property
    def converted(self) -> bool:
        """In full: changed, compiles, no wrap left, and nothing more to do the second time."""
        return bool(self.changed and self.compiled and self.idempotent and not self.wraps_left and not self.crash)


def repositories(folder: Path) -> list[Path]:
    """The folder itself if it is a repository or has Python files of its own; else the folders in it."""
    if (folder / ".git").exists() or any(folder.glob("*.py")) or (folder / "README.md").exists():
        return [folder]
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def measure(repository: Path, options: Options) -> list[Script]:
    """Converts one repository's scripts."""
    try:
        sources = tree.scan(repository).sources()
        layout = Layout(sources)
        guess = entries.guess(sources, layout)
    except Exception:  # noqa: BLE001 - a crash is a result here
        return [Script(repository.name, ".", crash=_tail())]
    found = [Script(repository.name, error.file, refused=_reason(error)) for error in guess.unread]
    followed = []
    for path in guess.entries:
        try:
            followed.append(programs.follow(sources, layout, path))
        except BadInput as error:
            found.append(Script(repository.name, path, refused=_reason(error)))
    for group in programs.groups(followed):
        found += _measure_group(repository.name, group, options)
    return sorted(found, key=lambda script: script.path)


def _measure_group(repository: str, group: Sequence[Program], options: Options) -> Iterator[Script]:
    start = time.perf_counter()
    try:
        outcome = programs.convert_group(group, options, lenient=True)
        seconds = (time.perf_counter() - start) / len(group)
        for program, error in outcome.refused:
            if not error.rule:  # a file can't be read, and nobody can convert it
                yield Script(repository, program.entry, refused=_reason(error), seconds=seconds)
                continue
            left = [f"{error.file}:{error.line}"]
            yield Script(repository, program.entry, compiled=True, idempotent=True, wraps_left=left, seconds=seconds)
        if outcome.programs:
            again = _again(outcome.programs, outcome.conversions, options)
            for program in outcome.programs:
                script = Script(repository, program.entry, seconds=seconds)
                _judge(script, program, outcome.conversions, again)
                yield script
    except Exception:  # noqa: BLE001 - a crash is a result here
        tail = _tail()
        yield from (Script(repository, program.entry, crash=tail) for program in group)


def _judge(
    script: Script,
    program: Program,
    conversions: Mapping[str, Conversion],
    again: Mapping[str, Conversion],
) -> None:
    """Fills in what is known of a script that was converted."""
    own = {path: conversions[path] for path in program.files}
    script.changed = sum(each.changed for each in own.values())
    script.notes = dict(Counter(note.rule for each in own.values() for note in each.notes))
    script.lines = sum(_changed_lines(program.files[path], each.new_text) for path, each in own.items())
    script.idempotent = not any(again[path].changed for path in own)
    script.compiled = all(_compiles(each.new_text, path) for path, each in own.items())
    if script.compiled:
        trees = {path: syntax.parse(each.new_text, path) for path, each in own.items()}
        classes = wrapcalls.subclasses(trees.values())
        script.wraps_left = [
            f"{path}:{line}" for path, tree in trees.items() for line in wrapcalls.places(tree, classes)
        ]


def _changed_lines(old: str, new: str) -> int:
    diff = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    return sum(line[:1] in "+-" for line in itertools.islice(diff, 2, None))


def _again(
    group: Sequence[Program], conversions: Mapping[str, Conversion], options: Options
) -> Mapping[str, Conversion]:
    texts = {path: each.new_text for path, each in conversions.items()}
    return convert_files(texts, [program.entry for program in group], options)


def _compiles(text: str, path: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _reason(error: BadInput) -> str:
    return str(error)


def _tail() -> str:
    return "".join(traceback.format_exc().splitlines(keepends=True)[-4:])


def line(script: Script) -> str:
    """One line of the table."""
    name = f"{script.repository}/{script.path}"
    if script.crash:
        return f"CRASH      {name}\n{script.crash}"
    if script.refused:
        return f"refused    {name}: {script.refused}"
    verdict = "converted" if script.converted else "NOT"
    return f"{verdict:10} {name}: {', '.join(_details(script))}"


def _details(script: Script) -> Iterator[str]:
    yield f"{script.changed} files"
    yield f"{script.lines} lines"
    if not script.compiled:
        yield "does not compile"
    if script.wraps_left:
        yield f"wraps left at {' '.join(script.wraps_left)}"
    if not script.idempotent:
        yield "changes again"
    if script.notes:
        yield "notes " + " ".join(f"{rule}×{number}" for rule, number in sorted(script.notes.items()))
    yield f"{script.seconds:.2f} s"


def totals(scripts: Sequence[Script]) -> dict[str, object]:
    """The counts over all scripts; those refused for reasons of their own are counted apart."""
    tried = [script for script in scripts if not script.refused]
    converted = [script for script in tried if script.converted]
    return {
        "scripts": len(scripts),
        "refused": len(scripts) - len(tried),
        "tried": len(tried),
        "converted": len(converted),
        "percent": round(100 * len(converted) / len(tried), 1) if tried else 100.0,
        "compiled": sum(script.compiled for script in tried),
        "wraps_left": sum(len(script.wraps_left) for script in tried),
        "idempotent": sum(script.idempotent for script in tried),
        "crashes": sum(bool(script.crash) for script in tried),
        "notes": dict(sum((Counter(script.notes) for script in tried), Counter())),
        "lines": sum(script.lines for script in tried),
        "seconds": round(sum(script.seconds for script in tried), 2),
    }


def markdown(scripts: Sequence[Script]) -> str:
    """The table as Markdown."""
    rows = [
        "| script | converted | files | lines | notes | seconds | what is left |",
        "|---|---|---|---|---|---|---|",
    ]
    for script in scripts:
        notes = ", ".join(f"{rule}×{number}" for rule, number in sorted(script.notes.items()))
        left = " ".join(f"wrap at {place}" for place in script.wraps_left)
        left = script.refused or ("crash" if script.crash else left)
        verdict = "refused" if script.refused else "yes" if script.converted else "**no**"
        cells = [f"{script.repository}/{script.path}", verdict, str(script.changed), str(script.lines), notes]
        cells += [f"{script.seconds:.2f}", left]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the lines and the totals; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was found out")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table")
    parser.add_argument("--allow-ddp", action="store_true", help="as for `dp2ddp convert`")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--min", type=float, metavar="PERCENT", help="exit with 1 below this share converted in full")
    options = parser.parse_args(arguments)
    places = [repository for folder in options.folders for repository in repositories(folder)]
    scripts: list[Script] = []
    with ProcessPoolExecutor(options.processes) as pool:
        for found in pool.map(partial(measure, options=Options(allow_ddp=options.allow_ddp)), places):
            scripts += found
            for script in found:
                print(line(script), flush=True)
    total = totals(scripts)
    print(*(f"{name:12} {value}" for name, value in total.items()), sep="\n")
    if options.json is not None:
        data = {"scripts": [asdict(script) for script in scripts], "total": total}
        options.json.write_text(json.dumps(data, indent=2) + "\n")
    if options.markdown is not None:
        options.markdown.write_text(markdown(scripts))
    short = options.min is not None and float(str(total["percent"])) < options.min
    return 1 if total["crashes"] or short else 0


if __name__ == "__main__":
    sys.exit(main())
