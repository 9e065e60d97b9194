"""The files that each side runs: the original's, the conversion's, and where they lie."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dp2ddp.convert import job, notebooks, programs
from dp2ddp.convert.programs import Program
from dp2ddp.errors import BadInput
from dp2ddp.project.modules import Layout
from dp2ddp.project.python_files import PythonFiles
from dp2ddp.rules import Options as ConversionOptions
from dp2ddp.source.syntax import without_async_arguments

_RUNTIME = "dp2ddp_runtime"
_PLACE = re.compile(r"(?<![\w./-])(?P<name>[\w.-]+\.(?:py|ipynb))(?=:\d|\", line \d)")


@dataclass(frozen=True)
class SideBySide:
    """What each side runs.

    Attributes:
        root: the folder that holds all files of the original.
        original: the files that differ from what lies there (none but the script itself, as a rule), by absolute path.
        converted: the files of the conversion, by the absolute path that they take the place of.
        notes: what a reader has to know about them.
        foreign: whether the converted program doesn't use this project's runtime.
        names: by what the converted files are called where they run, which is as the original's: what to call them.
    """

    root: Path
    original: Mapping[Path, bytes]
    converted: Mapping[Path, bytes]
    notes: list[str] = field(default_factory=list)
    foreign: bool = False
    names: Mapping[str, str] = field(default_factory=dict)

    def by_own_names(self, text: str) -> str:
        """What a converted script says, with its lines by its files' own names."""
        return _PLACE.sub(lambda place: self.names.get(place["name"], place["name"]), text)


def prepare(script: Path, converted: Path | None, *, allow_ddp: bool = False) -> SideBySide:
    """Read the original, with what it imports from its own project, and its conversion; make that if there is none.

    Raises:
        BadInput: a script that can't be read or converted.
    """
    notebooks.read(str(script))  # says what is wrong with it by the name that the user gave
    sources, program = _follow_imports(script)
    notes: list[str] = []
    original = {script.resolve(): sources.data(program.entry)}
    for path, text in program.files.items():
        modern, renamed = without_async_arguments(text)
        if renamed:
            original[sources.root / path] = sources.source(path).encode(modern)
            notes.append(f"{path} says `async=`, which is no Python any more: the original is run with `non_blocking=`")
    if converted is None:
        new, foreign = _convert(script, ConversionOptions(allow_ddp=allow_ddp), notes), False
    else:
        new, foreign = _read_converted(converted, script)
    names = {path.name: f"{path.name} (converted)" for path in new}
    if converted is not None:
        other = converted.name if converted.name != script.name else str(converted)
        names = {script.resolve().name: other} if converted.is_file() else names
    top = Path(os.path.commonpath([script.resolve().parent, *(path.parent for path in new)]))
    return SideBySide(top, original, new, notes, foreign, names)


def _follow_imports(script: Path) -> tuple[PythonFiles, Program]:
    root = programs.root_of([script.resolve()])
    sources = PythonFiles(root, late=lambda path: True)
    entry = script.resolve().relative_to(root).as_posix()
    sources.give(entry, notebooks.read(str(script)))
    return sources, programs.follow(sources, Layout(sources), entry)


def _convert(script: Path, options: ConversionOptions, notes: list[str]) -> dict[Path, bytes]:
    """What `dp2ddp convert` makes of a script and of what it imports."""
    done = job.converted(job.Request([str(script)], options), [notebooks.read(str(script))])
    conversions = done.outcome.conversions
    if any(conversion.converted_before for conversion in conversions.values()):
        todo = "give the original, and this file as --converted"
        raise BadInput(str(script), what="a converted script, not an original", todo=todo)
    why = programs.why_refused(conversions, conversions)
    if why is not None:
        raise done.names.renamed(why)
    if not done.outcome.changed():
        raise BadInput(str(script), what="nothing to convert: no nn.DataParallel", todo="verify needs one")
    count = sum(len(conversion.notes) for conversion in conversions.values())
    if count:
        notes.append(f"the conversion has {count} note(s) open: `dp2ddp convert` shows them")
    return {done.sources.root / path: done.new_bytes(path) for path in done.changed()}


def _read_converted(converted: Path, script: Path) -> tuple[dict[Path, bytes], bool]:
    """The converted script and, where it lies in another folder, its own copies of what it imports; and whether all of
    that knows nothing of the runtime."""
    text = notebooks.read(str(converted))
    if not converted.is_file():  # a pipe, which can be read once: it stands beside the original
        return {script.resolve(): text.encode(text.text)}, _RUNTIME not in text.text
    converted = converted.resolve()  # `/dev/stdin` may be a file
    sources, program = _follow_imports(converted)
    here, there = converted.resolve().parent, script.resolve().parent
    paths = [program.entry] if here == there else list(program.files)
    found: dict[Path, bytes] = {}
    for path in paths:
        place = os.path.normpath(there / os.path.relpath(sources.root / path, here))
        found[Path(place)] = sources.data(path)
    if converted.name != script.resolve().name:  # it takes the original's place, under its name
        del found[there / converted.name]
    foreign = not any(_RUNTIME in each for each in program.files.values())
    return {**found, script.resolve(): sources.data(program.entry)}, foreign
