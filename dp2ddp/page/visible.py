"""Text of others on a page: what doesn't show, or makes other text look different, is spelled out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markupsafe import Markup

# Control characters (escape sequences of terminals among them) but tab and newline; marks that have no width, turn
# the direction of text around or hide in it; separators of lines; halves of pairs, which UTF-8 can't hold.
_ODD = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)

_QUOTED = re.compile("`([^`]+)`")


def visible(text: str) -> str:
    r"""`text` with such characters as Python spells them: ``\x1b``, ``\u202e``."""
    return _ODD.sub(lambda match: _spelled(match.group()), text)


def code(text: str) -> Markup:
    """A piece of source as markup: the same, each such character marked and told, so that copying gives it back."""
    from markupsafe import Markup, escape

    parts: list[str] = []
    end = 0
    for match in _ODD.finditer(text):
        parts += [escape(text[end : match.start()]), _marked(match.group())]
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])


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
