"""Pages for a browser (`--html`): one file each, with nothing to fetch.

What all pages share is here: the frame (`templates/base.html.j2`), the theme, the parts (`templates/macros.html.j2`:
sections, tables, code before and after, commands with a button that copies them), the escaping. A page of your own `{%
extends "base.html.j2" %}` and fills `title`, `kind`, `verdict` and `main`; its styles and scripts lie beside it and
are given by name. The page's policy (Content-Security-Policy) forbids any request, and `style="..."` and
`onclick="..."`.

All that a template prints is escaped, and characters that don't show or turn text around are spelled out (`visible`).
So never write `|safe`; build markup with `Markup("<b>{}</b>").format(text)`. Source is `{{ text|code }}`; a sentence
with source in backticks is `{{ text|prose }}`. `<details data-print>` is open in print; `<input type="checkbox"
data-remember="KEY">` stays ticked. In tests the fixture `browser` (tests/browser.py) opens a page in a real browser.

`rendering` imports jinja2: import it only where a page is asked for.
"""

from __future__ import annotations

from pathlib import Path

from dp2ddp.errors import BadInput
from dp2ddp.project import placing, text_files

#: What every page has in its first lines.
_MARK = b'<meta name="generator" content="dp2ddp '
_HEAD = 1000  # bytes in which that stands


def check_target(path: str, *, force: bool) -> None:
    """Checks that a page may be written to `path`, before any work is done.

    Args:
        force: replace whatever is there.

    Raises:
        BadInput: a directory, something that is no page of dp2ddp (without `force`), or not writable.
    """
    target = Path(path)
    if path == text_files.STANDARD:
        raise BadInput("--html", what="a page can't go to standard output", todo="name a file, such as report.html")
    if not path or target.is_dir():
        raise BadInput(path or "--html", what="a directory" if path else "an empty name", todo="name the file to write")
    text_files.check_writable(target)
    head = target.read_bytes()[:_HEAD] if target.is_file() and not force else b""
    if head and _MARK not in head:
        todo = "name another file, or use --force to overwrite it"
        raise BadInput(path, what="exists already, and is no page of dp2ddp", todo=todo)


def write(path: str, page: str) -> None:
    """Writes a page, all of it or nothing.

    Raises:
        BadInput: it can't be written.
    """
    placing.write({Path(path): page.encode()})
