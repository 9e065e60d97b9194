"""`dp2ddp check`: what a conversion would change, and what needs a person; nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dp2ddp.convert import pipeline, scripts
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.convert.programs import Outcome
from dp2ddp.convert.request import Request, folders
from dp2ddp.convert.shown_names import Names
from dp2ddp.errors import BadInput
from dp2ddp.rewrite.edits import Edit, Note
from dp2ddp.rules import Options

CHANGE, NOTE, REFUSED = "change", "note", "refused"


class Found(NamedTuple):
    """One line that a conversion would change, or that it can't decide on.

    Attributes:
        file: as the user would name it.
        cell: of a notebook, from 1; None for a script.
        line: from 1; of the cell, where there is one.
        column: from 1.
        rule: the id of the rule; empty for a script that is refused before any rule is asked.
        kind: `CHANGE`, `NOTE` (needs a person), or `REFUSED` (nothing of that script is converted).
        message: what, and what to do.
    """

    file: str
    cell: int | None
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
    outcomes, refused = _outcomes(inputs, options)
    found = [*refused, *(each for names, outcome in outcomes for each in _found(names, outcome))]
    return sorted(dict.fromkeys(found), key=lambda each: (each.file, each.cell or 0, *each[2:]))


def _outcomes(inputs: Sequence[str], options: Options) -> tuple[list[tuple[Names, Outcome]], list[Found]]:
    """What becomes of the inputs, and the notebooks of directories that can't be read."""
    directories = folders(inputs)
    files = [name for name in inputs if name not in directories]
    outcomes, refused = [], []
    if files:
        outcomes.append(scripts.outcome_of(Request(files, options)))
    if directories:
        from dp2ddp.convert import folder  # with what a single script doesn't need

        outcomes += [folder.outcome_of(Request([name], options)) for name in directories]
    for notebook in (notebook for name in directories for notebook in folder.notebooks_of(name)):
        try:
            outcomes.append(scripts.outcome_of(Request([notebook], options)))
        except BadInput as error:
            refused.append(Found(notebook, None, error.line or 1, error.column or 1, "", REFUSED, _message(error)))
    return outcomes, refused


def _found(names: Names, outcome: Outcome) -> Iterator[Found]:
    for path, conversion in outcome.conversions.items():
        kind = REFUSED if conversion.refused else NOTE
        shown = names.shown(path)
        for edit in conversion.edits:
            cell, line, column = _place(edit, conversion)
            yield Found(shown, cell, line, column, edit.rule, CHANGE, edit.reason)
        for note in conversion.notes:
            cell, line, column = _place(note, conversion)
            yield Found(shown, cell, line, column, note.rule, kind, f"{note.what}; {note.todo}")
    for program, error in outcome.refused:
        yield _refused(names, program.entry, error)


def _place(finding: Edit | Note, conversion: Conversion) -> tuple[int | None, int, int]:
    line, column = finding.span.start
    cell, line = (None, line) if conversion.places is None else conversion.places.of(line)
    return cell, line, column + 1


def _message(error: BadInput) -> str:
    return f"{error.what}; {error.todo}" if error.todo else error.what


def _refused(names: Names, entry: str, error: BadInput) -> Found:
    shown = names.renamed(error)
    where = names.shown(entry) if error.line is None else shown.file
    return Found(where, None, error.line or 1, error.column or 1, "", REFUSED, _message(shown))
