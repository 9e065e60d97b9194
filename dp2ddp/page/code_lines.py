"""Code on a page: lines with their numbers, of two versions side by side, and what differs within them marked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, NamedTuple, Optional

from dp2ddp.page.escaping import code

if TYPE_CHECKING:
    from markupsafe import Markup

Row = tuple[Optional[int], Optional[int], bool]
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")


class Line(NamedTuple):
    """A line of either version: its numbers, from 1, None where it has none, its markup, and its name in links."""

    old: int | None
    new: int | None
    before: Markup
    after: Markup
    same: bool
    id: str = ""


def lines_of_rows(rows: Iterable[Row], old: Sequence[str], new: Sequence[str], links: Mapping[int, str]) -> list[Line]:
    """Rows (the numbers of lines that belong together, and whether they are the same) as lines of a page.

    Args:
        links: the names of old lines.
    """
    found = []
    for a, b, same in rows:
        before, after = "" if a is None else old[a - 1], "" if b is None else new[b - 1]
        left, right = marked(before, after) if a and b and not same else (code(before), code(after))
        found.append(Line(a, b, left, right, same, links.get(a or 0, "")))
    return found


def marked(old: str, new: str) -> tuple[Markup, Markup]:
    """Both lines with a mark on each part that the other hasn't."""
    from markupsafe import Markup

    one, other = _TOKEN.findall(old), _TOKEN.findall(new)
    before, after = Markup(""), Markup("")
    mark = Markup("<mark>{}</mark>")
    for kind, a, a_end, b, b_end in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        left, right = "".join(one[a:a_end]), "".join(other[b:b_end])
        before += code(left) if kind == "equal" or not left.strip() else mark.format(code(left))
        after += code(right) if kind == "equal" or not right.strip() else mark.format(code(right))
    return before, after
