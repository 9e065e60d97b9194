"""Pages that people look at in a browser: one file each, with nothing to fetch, for `--html`.

What all pages share is here: the frame (`templates/base.html.j2`), the theme, copy buttons, the escaping. To make one:

1. Put a template into `templates/` of your own package, `{% extends "base.html.j2" %}`, and fill its blocks: `title`,
   `kind` (a word or two for the top line), `verdict` (a badge and one sentence, first on the page), `main`, if need be
   `aside` (`<aside>`: what lies beside the page where it is wide, with `{% block layout %} sided wide{% endblock %}`).
   `{% from "macros.html.j2" import command, copy_button %}` gives commands with a button that copies them.
2. Styles and scripts of your own lie beside it and are given by name. Colours are the variables at the top of
   `base.css`, which know both themes (`light-dark()`). The page's policy (Content-Security-Policy) forbids any request,
   and `style="..."` and `onclick="..."`; classes and SVG's presentation attributes (`fill="..."`) are fine.
3. `render("dp2ddp.yours", "yours.html.j2", content, styles=["yours.css"], scripts=["yours.js"])` gives the page.
   All that a template prints is escaped, and characters that don't show or turn text around are spelled out
   (`visible`), unless it is `markupsafe.Markup` already. So never write `|safe`; build markup with
   `Markup("<b>{}</b>").format(text)`. A piece of source is `{{ text|code }}`, which can be copied as it was; of a
   sentence with source in backticks `{{ text|prose }}` makes `<code>`.
4. `check_target(path, force=...)` before any work, `write(path, page)` when it is done.

`<details data-print>` is open in print, whatever it is on the screen; a link to something inside closed `<details>`
opens them. `<input type="checkbox" data-remember="KEY">` stays ticked (localStorage). `dp2ddp.say(text)` in a script
tells a screen reader. In tests the fixture `browser` (tests/browser.py) opens a page in a real browser.

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
