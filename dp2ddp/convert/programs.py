"""Converts the scripts of a project, each together with the files that it imports.

Scripts that share files are converted together, since a shared file has one conversion; all others independently.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dp2ddp.convert import pipeline
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.errors import BadInput
from dp2ddp.project import wrapcalls
from dp2ddp.project.modules import Layout
from dp2ddp.project.python_files import PythonFiles
from dp2ddp.rewrite.edits import Note
from dp2ddp.rules import Options
from dp2ddp.source import syntax

#: What lies in the top folder of a project.
_ROOT_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")


@dataclass(frozen=True)
class Program:
    """A script and what it imports.

    Attributes:
        entry: the script.
        files: the text of each file by its path, the script itself first.
        unread: imported files that can't be read as Python and don't matter to the conversion.
    """

    entry: str
    files: Mapping[str, str]
    unread: Sequence[BadInput] = ()


@dataclass
class Outcome:
    """What became of a project's scripts.

    Attributes:
        programs: the scripts that were converted, with their files.
        conversions: by path, of all files of these programs.
        refused: the scripts that were left as they are, and why.
    """

    programs: list[Program] = field(default_factory=list)
    conversions: dict[str, Conversion] = field(default_factory=dict)
    refused: list[tuple[Program, BadInput]] = field(default_factory=list)

    @property
    def is_refused(self) -> bool:
        """Whether something can't be converted in a script that can't be left out: then nothing is to be written."""
        return any(conversion.refused for conversion in self.conversions.values())

    def changed(self) -> list[str]:
        """The files that are to be written anew, sorted."""
        return sorted(path for path, conversion in self.conversions.items() if conversion.changed)


def root_of(scripts: Sequence[Path]) -> Path:
    """The folder of the scripts' project: the nearest above that looks like it, else the current one, else their own.

    Args:
        scripts: absolute paths.
    """
    shared = Path(os.path.commonpath([script.parent for script in scripts]))
    for folder in (shared, *shared.parents):
        if any((folder / mark).exists() for mark in _ROOT_MARKS):
            return folder
    here = Path.cwd()
    return here if here == shared or here in shared.parents else shared


def follow(sources: PythonFiles, layout: Layout, entry: str) -> Program:
    """The program that the script `entry` starts.

    Raises:
        BadInput: the script, or a file that it imports and that names `DataParallel`, can't be read as Python.
    """
    files = {entry: sources[entry]}
    unread = []
    for path in layout.reachable(entry)[1:]:
        try:
            if not layout.imports(path).is_python:
                syntax.shared(sources[path], path)
            files[path] = sources[path]
        except BadInput as error:
            if wrapcalls.mentions(sources.data(path)):
                raise
            unread.append(error)
    return Program(entry, files, unread)


def groups(programs: Sequence[Program]) -> list[list[Program]]:
    """The programs, those together that share a file, be it by way of a third one."""
    found: list[tuple[set[str], list[Program]]] = []
    for program in programs:
        joined = [each for each in found if not each[0].isdisjoint(program.files)]
        found = [each for each in found if each[0].isdisjoint(program.files)]
        paths = set(program.files).union(*(paths for paths, _ in joined))
        found.append((paths, [*(other for _, others in joined for other in others), program]))
    return [members for _, members in found]


def convert(programs: Sequence[Program], options: Options, *, lenient: bool) -> Outcome:
    """Converts programs.

    Args:
        lenient: the scripts were guessed, so all of them come to a wrap; leave one that can't be converted as it is,
            and go on with the others.

    Raises:
        BadInput: a script can't be converted, and not `lenient`.
        EditError: a mistake in dp2ddp.
    """
    outcome = Outcome()
    for group in groups(programs):
        part = convert_group(group, options, lenient=lenient)
        outcome.programs += part.programs
        outcome.conversions.update(part.conversions)
        outcome.refused += part.refused
    return outcome


def convert_group(programs: Sequence[Program], options: Options, *, lenient: bool) -> Outcome:
    """Converts programs that share files. As `convert`."""
    outcome = Outcome(programs=list(programs))
    while outcome.programs:
        files = {path: text for program in outcome.programs for path, text in program.files.items()}
        try:
            entries = [program.entry for program in outcome.programs]
            outcome.conversions = pipeline.convert_files(files, entries, options)
            if not (lenient and _set_aside(outcome)):
                break
        except BadInput as error:
            stopped = [program for program in outcome.programs if error.file in program.files]
            if not lenient or not stopped:
                raise
            outcome.refused += [(program, error) for program in stopped]
            outcome.programs = [program for program in outcome.programs if error.file not in program.files]
    return outcome


def _set_aside(outcome: Outcome) -> bool:
    """Sets the scripts aside that stop the conversion of all; returns whether there were any."""
    reasons = {program.entry: why_refused(program.files, outcome.conversions) for program in outcome.programs}
    stopped = [(program, why) for program in outcome.programs if (why := reasons[program.entry]) is not None]
    outcome.refused += stopped
    outcome.programs = [program for program in outcome.programs if reasons[program.entry] is None]
    if not outcome.programs:
        outcome.conversions = {}
    return bool(stopped)


def why_refused(files: Iterable[str], conversions: Mapping[str, Conversion]) -> BadInput | None:
    """All that keeps a program of these files from being converted, None if nothing does."""
    found = [(path, note) for path in files for note in conversions[path].notes if conversions[path].refused]
    if not found:
        return None
    path, first = found[0]
    by_todo: dict[str, list[tuple[Note, str]]] = {}  # what is mended in the same way is said once
    for where, note in found:
        place = ("line " if where == path else f"{where}:") + str(note.span.start.line)
        by_todo.setdefault(note.todo, []).append((note, place))
    told = []
    for (note, place), *others in by_todo.values():
        text = note.todo if note is first else pipeline.in_brief(note, place)
        alike = ", ".join(dict.fromkeys(each for _, each in others))
        told.append(f"{text} (and in the same way for {alike})" if others else text)
    return BadInput(path, line=first.span.start.line, what=first.what, todo="; and ".join(told), rule=first.rule)
