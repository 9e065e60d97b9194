"""Pages that people look at in a browser: one file each, with nothing to fetch, for `--html`.

What all pages share is here: the frame (`templates/base.html.j2`), the theme, the parts (`templates/macros.html.j2`:
sections, tables, code before and after, commands with a button that copies them), the escaping. A page of your own `{%
extends "base.html.j2" %}` and fills `title`, `kind`, `verdict` and `main`; its styles and scripts lie beside it and
are given by name. The page's policy (Content-Security-Policy) forbids any request, and `style="..."` and
`onclick="..."`.

All that a template prints is escaped, and characters that don't show or turn text around are spelled out (`visible`).
So never write `|safe`; build markup with `Markup("<b>{}</b>").format(text)`. Source is `{{ text|code }}`; a sentence
with source in backticks is `{{ text|prose }}`. `<details data-print>` is open in print; `<input type="checkbox"
data-remember="KEY">` stays ticked. In tests the fixture `browser` (tests/browser.py) opens a page in a real browser.

Jinja2 is imported by `render`, and so only where a page is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dp2ddp.page.escaping import code, prose, visible
from dp2ddp.page.writing import check_target, write

__all__ = ["check_target", "code", "prose", "render", "visible", "write"]


def render(
    package: str,
    template: str,
    content: Mapping[str, object],
    *,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
) -> str:
    """The page that `template` of a package's `templates/` makes of `content`.

    Args:
        package: its full name.
        template: the template's file name.
        content: what the template names.
        styles, scripts: names of files beside the template, added to the page behind the shared ones.
    """
    from dp2ddp.page import rendering

    return rendering.render(package, template, content, styles, scripts)
