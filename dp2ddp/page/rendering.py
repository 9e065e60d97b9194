"""Templates to pages, with jinja2; and others' text on them: what doesn't show, or hides more, is spelled out."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import NamedTuple, Optional

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from dp2ddp import __version__

# Control characters (escape sequences of terminals among them) but tab and newline; marks that have no width, turn
# the direction of text around or hide in it; separators of lines; halves of pairs, which UTF-8 can't hold.
_ODD = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)

_QUOTED = re.compile("`([^`]+)`")
Row = tuple[Optional[int], Optional[int], bool]
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_SHARED = "dp2ddp.page"


def visible(text: str) -> str:
    r"""`text` with such characters as Python spells them: ``\x1b``, ``\u202e``."""
    return _ODD.sub(lambda match: _spelled(match.group()), text)


def code(text: str) -> Markup:
    """A piece of source as markup; what `visible` spells out is marked, so that copying gives it."""
    parts = re.split(f"({_ODD.pattern})", text)
    return Markup("").join(_marked(part) if number % 2 else escape(part) for number, part in enumerate(parts))


def prose(text: str) -> Markup:
    """A sentence as markup; what stands in it between backticks is source."""
    parts = _QUOTED.split(" ".join(text.split()))
    quoted = Markup("<code>{}</code>")
    return Markup("").join(
        quoted.format(code(part)) if number % 2 else escape(visible(part)) for number, part in enumerate(parts)
    )


def _marked(character: str) -> Markup:
    mark = Markup('<span class="odd" data-char="{}" title="a character that does not show">{}</span>')
    return mark.format(ord(character), _spelled(character))


def _spelled(character: str) -> str:
    point = ord(character)
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


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
    one, other = _TOKEN.findall(old), _TOKEN.findall(new)
    before, after = Markup(""), Markup("")
    mark = Markup("<mark>{}</mark>")
    for kind, a, a_end, b, b_end in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        left, right = "".join(one[a:a_end]), "".join(other[b:b_end])
        before += code(left) if kind == "equal" or not left.strip() else mark.format(code(left))
        after += code(right) if kind == "equal" or not right.strip() else mark.format(code(right))
    return before, after


def render(
    package: str,
    template: str,
    content: Mapping[str, object],
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
) -> str:
    """The page that `template` (a file's name) of a package's `templates/` makes of `content`.

    Args:
        styles, scripts: names of files beside the template, added to the page behind the shared ones.
    """
    environment = _environment(package)
    style = _joined(environment, ["base.css", *styles])
    script = _joined(environment, ["base.js", *scripts])
    return environment.get_template(template).render(
        content,
        dp2ddp_version=__version__,
        style=Markup(style),
        script=Markup(script),
        policy=f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'",
    )


def _environment(package: str) -> Environment:
    own = [] if package == _SHARED else [PackageLoader(package)]
    environment = Environment(
        loader=ChoiceLoader([*own, PackageLoader(_SHARED)]),
        # Whatever a template prints; no name, no line of a script, no message can be forgotten.
        autoescape=True,
        finalize=_finalized,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = code
    environment.filters["prose"] = prose
    return environment


def _finalized(value: object) -> object:
    """What a template prints: text with its odd characters spelled out, unless it is markup already."""
    return value if hasattr(value, "__html__") else visible(str(value))


def _joined(environment: Environment, names: Sequence[str]) -> str:
    assert environment.loader is not None
    texts = [environment.loader.get_source(environment, name)[0] for name in names]
    # A browser takes the hash of what it reads, in which lines end with a newline.
    return "\n".join(texts).replace("\r\n", "\n")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
