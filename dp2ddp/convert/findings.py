"""What a conversion changes, and what needs a person: one finding for each line and rule, with its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dp2ddp.convert import diffs
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.errors import BadInput
from dp2ddp.project import text_files
from dp2ddp.rewrite.edits import (
    HOLE,
    Edit,
    InsertAfter,
    InsertBefore,
    RemoveStatement,
    ReplaceExpr,
    ReplaceStatement,
    WithHoles,
)
from dp2ddp.rules import rule
from dp2ddp.source.spans import Span, in_brief, text_at

CHANGE, NOTE, REFUSED = "change", "note", "refused"
#: What becomes of the source `old` by an edit.
_SAID: Mapping[type[Edit], str] = {
    ReplaceExpr: "`{old}` becomes `{new}`",
    ReplaceStatement: "`{old}` becomes `{new}`",
    InsertBefore: "`{new}` is added",
    InsertAfter: "`{new}` is added",
    RemoveStatement: "`{old}` goes",
}
#: Characters of source that fit into a message.
_BRIEF = 40
_CALLED = re.compile(r"(?:[\w.]+ = )?[\w.]+\(")


class Found(NamedTuple):
    """One line that a conversion changes, or that it can't decide on.

    Attributes:
        file: as the user would name it.
        cell: of a notebook, from 1; None for a script.
        line: from 1, in the file (or cell) before its conversion.
        column: from 1, in characters.
        rule: the id of the rule, or a word for what isn't a rule's; empty for a script that is refused as a whole.
        kind: `CHANGE`, `NOTE` (needs a person), or `REFUSED` (nothing of that script is converted).
        message: what becomes of what, and why; or what is at stake, and what to do.
        end_column: behind the last character of what it is about on that line; `column` where that isn't known.
        source: the line, and one above and below it, with their numbers.
        becomes: the new lines, with those around them that change with them.
        effect: of a change, what it does, in the words of its rule.
    """

    file: str
    cell: int | None
    line: int
    column: int
    rule: str
    kind: str
    message: str
    end_column: int = 0
    source: tuple[tuple[int, str], ...] = ()
    becomes: tuple[str, ...] = ()
    effect: str = ""

    @property
    def place(self) -> str:
        """The line, of a notebook ``cell 3:2``."""
        return str(self.line) if self.cell is None else f"cell {self.cell}:{self.line}"

    def as_data(self) -> dict[str, Any]:
        """As docs/findings.schema.json has it."""
        data = self._asdict()
        del data["source"], data["effect"]
        return data


def found_in(conversion: Conversion, name: str) -> Iterator[Found]:
    """What was found in the file `name`."""
    old = diffs.lines_of(conversion.old_text)
    new = diffs.lines_of(conversion.new_text)
    hunks = diffs.hunks(list(diffs.rows(old, new)), conversion.edits) if conversion.edits else []
    for edit in conversion.edits:
        own = [hunk for hunk in hunks if edit in hunk.edits]
        place = _placed(edit.span, conversion, old)
        becomes = tuple(new[number - 1] for hunk in own for number in hunk.new)
        known = rule(edit.rule)
        effect = known.effect_of(edit) if known else edit.rule
        said = _said(edit, old)
        yield Found(name, rule=edit.rule, kind=CHANGE, message=said, becomes=becomes, effect=effect, **place)
    for note in conversion.notes:
        kind = REFUSED if conversion.refused else NOTE
        message = f"{note.what}; {note.todo}"
        yield Found(name, rule=note.rule, kind=kind, message=message, **_placed(note.span, conversion, old))


def _placed(span: Span, conversion: Conversion, lines: Sequence[str]) -> dict[str, Any]:
    (line, column), (end, end_column) = span
    text = lines[line - 1] if line <= len(lines) else ""
    last = end_column if end == line and end_column > column else len(text)
    places = conversion.places
    cell, shown = (None, line) if places is None else places.of(line)
    near = [n for n in range(line - 1, line + 2) if 0 < n <= len(lines)]
    # Of a notebook the lines of the same cell alone.
    numbered = [(n, (cell, n) if places is None else places.of(n)) for n in near]
    source = tuple((place[1], lines[n - 1]) for n, place in numbered if place[0] == cell)
    return {"cell": cell, "line": shown, "column": column + 1, "end_column": last + 1, "source": source}


def _said(edit: Edit, lines: Sequence[str]) -> str:
    """What becomes of what, and why."""
    new = _filled(edit.source.lstrip("\n").partition("\n")[0], edit.holes, lines) if isinstance(edit, WithHoles) else ""
    what = _SAID.get(type(edit), "`{old}`").format(old=_brief(text_at(edit.span, lines)), new=new)
    return f"{what}: {edit.reason}"


def _filled(template: str, holes: Mapping[str, Span], lines: Sequence[str]) -> str:
    filled = HOLE.sub(lambda hole: _brief(text_at(holes[hole[1]], lines)) if hole[1] in holes else hole[0], template)
    return _brief(filled, 2 * _BRIEF)


def _brief(text: str, most: int = _BRIEF) -> str:
    """Source on one line, as far as it fits: of a call, at least what is called."""
    flat = " ".join(text.split())
    if len(flat) <= most:
        return flat
    called = _CALLED.match(flat)
    return f"{called[0]}...)" if called and len(called[0]) < most else in_brief(flat, most)


def refusal(name: str, why: BadInput) -> Found:
    """A script that is refused as a whole: `name`, or the file that `why` is about if it says the line."""
    message = f"{why.what}; {why.todo}" if why.todo else why.what
    where = name if why.line is None else why.file
    line = why.line or 1
    source = tuple(excerpt(where, line, 1)) if why.line else ()
    return Found(where, None, line, why.column or 1, why.rule, REFUSED, message, why.column or 1, source)


def excerpt(file: str, line: int, around: int) -> Iterator[tuple[int, str]]:
    """The lines around one, with their numbers; none where the file can't be read."""
    try:
        lines = diffs.lines_of(text_files.read(file).text)
    except BadInput:
        return
    for number in range(max(line - around, 1), min(line + around, len(lines)) + 1):
        yield number, lines[number - 1]


def in_order(found: Iterable[Found]) -> list[Found]:
    """Each finding once, in the order of the lines."""
    return sorted({each[:7]: each for each in found}.values(), key=lambda each: (each.file, each.cell or 0, *each[2:7]))
