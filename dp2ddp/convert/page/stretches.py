"""A file's rows in stretches: those that changed, with the rules that did it, and those that didn't, folded."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from dp2ddp.convert.page.sides import Row
from dp2ddp.rewrite.edits import Edit

CHANGED, SAME, FOLDED = "changed", "same", "folded"
#: Unchanged lines that are shown around what changed, and how many more are worth folding.
_AROUND, _FEWEST = 3, 4


@dataclass
class Stretch:
    """Rows that lie together.

    Attributes:
        kind: `CHANGED`, `SAME` (shown) or `FOLDED` (shown on demand).
        above: the number of the old line above, 0 at the top.
        edits: those that changed it, in the order of the source.
    """

    kind: str
    rows: list[Row]
    above: int = 0
    edits: list[Edit] = field(default_factory=list)


def stretches(rows: Sequence[Row], edits: Sequence[Edit], wanted: Collection[int] = ()) -> list[Stretch]:
    """A file's stretches.

    Args:
        edits: what changed it.
        wanted: lines of the old version that are to be shown, changed or not.
    """
    if all(row.same for row in rows) and not wanted:
        return [Stretch(FOLDED, list(rows))]
    found = list(_cut(rows, wanted))
    changed = [stretch for stretch in found if stretch.kind == CHANGED]
    for edit in edits if changed else ():
        min(changed, key=lambda stretch: _distance(stretch, edit)).edits.append(edit)
    return found


def _cut(rows: Sequence[Row], wanted: Collection[int]) -> Iterator[Stretch]:
    """Changed rows by themselves, the others shown where they are near to what matters."""
    matters = [number for number, row in enumerate(rows) if not row.same or row.old in wanted]
    shown = {near for number in matters for near in range(number - _AROUND, number + _AROUND + 1)}
    gaps = groupby(range(len(rows)), key=lambda number: number in shown)
    folded = {number for is_shown, part in gaps if not is_shown for number in _if_many(list(part))}

    def kind(number: int) -> str:
        if not rows[number].same:
            return CHANGED
        return FOLDED if number in folded else SAME

    above = 0
    for each, part in groupby(range(len(rows)), key=kind):
        stretch = Stretch(each, [rows[number] for number in part], above)
        yield stretch
        above = max([above, *(row.old for row in stretch.rows if row.old is not None)])


def _if_many(numbers: list[int]) -> list[int]:
    return numbers if len(numbers) >= _FEWEST else []


def _distance(stretch: Stretch, edit: Edit) -> tuple[int, int]:
    """How far a stretch is from the lines of an edit; of those that are in reach the first."""
    first, last = edit.span.start.line, max(edit.span.start.line, edit.span.end.line)
    # What is only inserted stands before the next old line.
    lines = [row.old for row in stretch.rows if row.old is not None] or [stretch.above + 1]
    inside = [line for line in lines if first <= line <= last]
    if inside:
        return (0, inside[0])
    return (min(abs(line - near) for line in lines for near in (first, last)), lines[0])
