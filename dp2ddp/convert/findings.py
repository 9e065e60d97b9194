"""What a conversion changes, and what needs a person, one finding for each line and rule; for machines to read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dp2ddp.convert.pipeline import Conversion
from dp2ddp.errors import BadInput
from dp2ddp.rewrite.edits import Edit, Note

CHANGE, NOTE, REFUSED = "change", "note", "refused"


class Found(NamedTuple):
    """One line that a conversion changes, or that it can't decide on.

    Attributes:
        file: as the user would name it.
        cell: of a notebook, from 1; None for a script.
        line: from 1, in the file (or cell) before its conversion.
        column: from 1, in characters.
        rule: the id of the rule, or a word for what isn't a rule's; empty for a script that is refused as a whole.
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


def found_in(conversion: Conversion, name: str) -> Iterator[Found]:
    """What was found in the file `name`."""
    kind = REFUSED if conversion.refused else NOTE
    for edit in conversion.edits:
        yield Found(name, *_place(edit, conversion), edit.rule, CHANGE, edit.reason)
    for note in conversion.notes:
        yield Found(name, *_place(note, conversion), note.rule, kind, f"{note.what}; {note.todo}")


def _place(finding: Edit | Note, conversion: Conversion) -> tuple[int | None, int, int]:
    line, column = finding.span.start
    cell, line = (None, line) if conversion.places is None else conversion.places.of(line)
    return cell, line, column + 1


def refusal(name: str, why: BadInput) -> Found:
    """A script that is refused as a whole: `name`, or the file that `why` is about if it says the line."""
    message = f"{why.what}; {why.todo}" if why.todo else why.what
    where = name if why.line is None else why.file
    return Found(where, None, why.line or 1, why.column or 1, why.rule, REFUSED, message)


def in_order(found: Iterable[Found]) -> list[Found]:
    """Each finding once, in the order of the lines."""
    return sorted(dict.fromkeys(found), key=lambda each: (each.file, each.cell or 0, *each[2:]))
