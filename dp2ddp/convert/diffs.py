"""Unified diffs, as git and patch take them."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Sequence

from click import style

from dp2ddp.command import terminal
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.project.text_files import TextFile

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_HUNK = re.compile(r"(@@ -(\d+).* @@)(.*)")
_COLORS = {"+": "green", "-": "red"}
#: What git takes for the line that a hunk is in: one that begins with a name.
_HEADING = re.compile(r"[A-Za-z_]")


def show(changes: Iterable[tuple[str, TextFile, Conversion]]) -> None:
    """Shows the diffs of files, by what to call these, on standard output; in colors on a terminal."""
    for name, source, conversion in changes:
        text = diff(name, source.text, conversion.new_text)
        if not text:
            continue
        if terminal.is_colored(to_error=False):
            terminal.show_results([colored(text).removesuffix("\n")])
        else:
            # In the file's own bytes, so that the diff can be applied to it; its name need not be in their encoding.
            start = text.find("\n@@")
            terminal.write_result(text[:start].encode("utf-8") + text[start:].encode(source.encoding))


def diff(name: str, old: str, new: str) -> str:
    """The unified diff from `old` to `new`, as `patch` takes it; newlines as they are in both.

    As git has it, a hunk says behind its line numbers which function or class it is in.
    """
    name = _quoted(name)
    before = _LINE.findall(old)
    lines = difflib.unified_diff(before, _LINE.findall(new), fromfile=name, tofile=name)
    # A file without a final newline must say so, or the next line of the diff ends up on the same line.
    whole = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return "".join(_with_heading(line, before) for line in whole)


def _quoted(name: str) -> str:
    """A file's name as git and patch write it where it isn't plain text: in quotes, bytes as octal numbers."""
    if name.isprintable() and '"' not in name:
        return name
    data = os.fsencode(name)
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in data)
    return f'"{"".join(plain)}"'


def _with_heading(line: str, before: Sequence[str]) -> str:
    hunk = _HUNK.match(line)
    if hunk is None:
        return line
    above = before[: max(int(hunk[2]) - 1, 0)]
    heading = next((text for text in reversed(above) if _HEADING.match(text)), "")
    return f"{hunk[1]} {heading.strip()}".rstrip() + "\n"


def colored(text: str) -> str:
    """A diff in the colors of `git diff`."""
    return "".join(f"{_colored(line)}\n" for line in text.removesuffix("\n").split("\n"))


def _colored(line: str) -> str:
    if line.startswith(("--- ", "+++ ")):
        return style(line, bold=True)
    hunk = _HUNK.match(line)
    if hunk is not None:
        return style(hunk[1], fg="cyan") + hunk[3]
    return style(line, fg=_COLORS[line[0]]) if line[:1] in _COLORS else line
