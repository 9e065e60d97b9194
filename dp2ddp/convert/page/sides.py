"""Two versions of a file side by side: lines that belong together in one row, and what differs within them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple, Optional

from dp2ddp.page import code

if TYPE_CHECKING:
    from markupsafe import Markup

_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
# Lines that have less than this in common are another line, not a changed one.
_ALIKE = 0.5
# A changed stretch with more pairs of lines than that is put side by side as it comes.
_MOST_PAIRS = 4000
Pair = tuple[Optional[int], Optional[int]]


class Row(NamedTuple):
    """One row.

    Attributes:
        old, new: the line's number in either version, from 1; None where it has none.
        before, after: the line as markup, with what differs marked.
        same: whether both are the same.
    """

    old: int | None
    new: int | None
    before: Markup
    after: Markup
    same: bool


def lines_of(text: str) -> list[str]:
    """A source's lines as Python counts them: form feeds and the like end none."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def rows(old: Sequence[str], new: Sequence[str]) -> Iterator[Row]:
    """All lines of both versions, in order."""
    for a, b in _pairs(old, new):
        if a is None or b is None:
            before, after = _plain(old, a), _plain(new, b)
            yield Row(_number(a), _number(b), before, after, False)
        elif old[a] == new[b]:
            text = code(old[a])
            yield Row(a + 1, b + 1, text, text, True)
        else:
            before, after = _marked(old[a], new[b])
            yield Row(a + 1, b + 1, before, after, False)


def _number(index: int | None) -> int | None:
    return None if index is None else index + 1


def _plain(lines: Sequence[str], index: int | None) -> Markup:
    return code("" if index is None else lines[index])


def _pairs(old: Sequence[str], new: Sequence[str]) -> Iterator[Pair]:
    for kind, a, a_end, b, b_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            yield from zip(range(a, a_end), range(b, b_end))
        else:
            yield from _aligned(old, new, range(a, a_end), range(b, b_end))


def _aligned(old: Sequence[str], new: Sequence[str], left: range, right: range) -> Iterator[Pair]:
    """Lines of a changed stretch, those that are alike in one row: what is alike most, in order."""
    if len(left) * len(right) > _MOST_PAIRS:
        likeness = dict.fromkeys(zip(left, right), 1.0)
    else:
        likeness = {(a, b): _likeness(old[a], new[b]) for a in left for b in right}
    best: dict[tuple[int, int], float] = {}
    for a in reversed(left):
        for b in reversed(right):
            alike = likeness.get((a, b), 0.0)
            paired = alike + best.get((a + 1, b + 1), 0.0) if alike else 0.0
            best[a, b] = max(paired, best.get((a + 1, b), 0.0), best.get((a, b + 1), 0.0))
    a, b = left.start, right.start
    while a < left.stop and b < right.stop:
        alike = likeness.get((a, b), 0.0)
        if alike and best[a, b] == alike + best.get((a + 1, b + 1), 0.0):
            yield a, b
            a, b = a + 1, b + 1
        elif best.get((a + 1, b), 0.0) >= best.get((a, b + 1), 0.0):
            yield a, None
            a += 1
        else:
            yield None, b
            b += 1
    yield from ((a, None) for a in range(a, left.stop))
    yield from ((None, b) for b in range(b, right.stop))


def _likeness(old: str, new: str) -> float:
    """How much two lines have in common, indentation aside; 0 for different ones."""
    one, other = old.strip(), new.strip()
    if not one or not other:
        return float(one == other)
    if one in other or other in one:
        return 1.0
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    ratio = matcher.ratio() if matcher.quick_ratio() >= _ALIKE else 0.0
    return ratio if ratio >= _ALIKE else 0.0


def _marked(old: str, new: str) -> tuple[Markup, Markup]:
    """Both lines with a mark on each stretch that the other hasn't."""
    from markupsafe import Markup

    one, other = _TOKEN.findall(old), _TOKEN.findall(new)
    before, after = Markup(""), Markup("")
    mark = Markup("<mark>{}</mark>")
    for kind, a, a_end, b, b_end in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        left, right = code("".join(one[a:a_end])), code("".join(other[b:b_end]))
        before += left if kind == "equal" or not left else mark.format(left)
        after += right if kind == "equal" or not right else mark.format(right)
    return before, after
