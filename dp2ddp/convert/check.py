"""`dp2ddp check`: what a conversion would change, and what needs a person; nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dp2ddp.convert import pipeline, scripts
from dp2ddp.convert.programs import Outcome
from dp2ddp.convert.request import Request, folders
from dp2ddp.convert.shown_names import Names
from dp2ddp.errors import BadInput
from dp2ddp.rules import Options

CHANGE, NOTE, REFUSED = "change", "note", "refused"


class Found(NamedTuple):
    """One line that a conversion would change, or that it can't decide on.

    Attributes:
        file: as the user would name it.
        line: from 1.
        column: from 1.
        rule: the id of the rule; empty for a script that is refused before any rule is asked.
        kind: `CHANGE`, `NOTE` (needs a person), or `REFUSED` (nothing of that script is converted).
        message: what, and what to do.
    """

    file: str
    line: int
    column: int
    rule: str
    kind: str
    message: str


def check(inputs: Sequence[str], options: Options) -> list[Found]:
    """What is found in scripts and directories, in the order of the lines; each line and rule once.

    Raises:
        BadInput: an input can't be read.
    """
    pipeline.check_rules(options)
    directories = folders(inputs)
    files = [name for name in inputs if name not in directories]
    outcomes = []
    if files:
        outcomes.append(scripts.outcome_of(Request(files, options)))
    if directories:
        from dp2ddp.convert import folder  # with what a single script doesn't need

        outcomes += [folder.outcome_of(Request([name], options)) for name in directories]
    found = [each for names, outcome in outcomes for each in _found(names, outcome)]
    return sorted(dict.fromkeys(found))


def _found(names: Names, outcome: Outcome) -> Iterator[Found]:
    for path, conversion in outcome.conversions.items():
        kind = REFUSED if conversion.refused else NOTE
        shown = names.shown(path)
        for edit in conversion.edits:
            line, column = edit.span.start
            yield Found(shown, line, column + 1, edit.rule, CHANGE, edit.reason)
        for note in conversion.notes:
            line, column = note.span.start
            yield Found(shown, line, column + 1, note.rule, kind, f"{note.what}; {note.todo}")
    for program, error in outcome.refused:
        yield _refused(names, program.entry, error)


def _refused(names: Names, entry: str, error: BadInput) -> Found:
    shown = names.renamed(error)
    message = f"{shown.what}; {shown.todo}" if shown.todo else shown.what
    where = names.shown(entry) if error.line is None else shown.file
    return Found(where, error.line or 1, error.column or 1, "", REFUSED, message)
