"""Text of others on a page: what doesn't show, or makes other text look different, is spelled out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markupsafe import Markup

# Control characters (escape sequences of terminals among them) but tab and newline; marks that have no width, turn
# the direction of text around or hide in it; separators of lines; halves of pairs, which UTF-8 can't hold.
_ODD = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)

# Letters that are written from right to left: what stands behind them would change places with them.
_FROM_RIGHT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]+")
_QUOTED = re.compile("`([^`]+)`")


def visible(text: str) -> str:
    r"""`text` with such characters as Python spells them: ``\x1b``, ``\u202e``."""
    return _ODD.sub(lambda match: _spelled(match.group()), text)


def code(text: str) -> Markup:
    """A piece of source as markup, in its own order; what `visible` spells out is marked, so that copying gives it."""
    return _each(_ODD, text, _marked, lambda part: _each(_FROM_RIGHT, part, _apart, _escaped))


def _each(
    pattern: re.Pattern[str], text: str, found: Callable[[str], Markup], between: Callable[[str], Markup]
) -> Markup:
    """`text` with `found` of what a pattern finds, and `between` of all else."""
    from markupsafe import Markup

    parts: list[str] = []
    end = 0
    for match in pattern.finditer(text):
        parts += [between(text[end : match.start()]), found(match.group())]
        end = match.end()
    return Markup("").join([*parts, between(text[end:])])


def _escaped(text: str) -> Markup:
    from markupsafe import escape

    return escape(text)


def _apart(letters: str) -> Markup:
    from markupsafe import Markup

    return Markup("<bdi>{}</bdi>").format(letters)


def prose(text: str) -> Markup:
    """A sentence as markup; what stands in it between backticks is source."""
    from markupsafe import Markup, escape

    parts = _QUOTED.split(" ".join(text.split()))
    quoted = Markup("<code>{}</code>")
    return Markup("").join(
        quoted.format(code(part)) if number % 2 else escape(visible(part)) for number, part in enumerate(parts)
    )


def _marked(character: str) -> Markup:
    from markupsafe import Markup

    mark = Markup('<span class="odd" data-char="{}" title="a character that does not show">{}</span>')
    return mark.format(ord(character), _spelled(character))


def _spelled(character: str) -> str:
    point = ord(character)
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
