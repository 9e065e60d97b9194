"""Two versions of a file: as a unified diff, and side by side, in rows of lines that belong together and hunks."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher, get_close_matches
from itertools import groupby
from typing import NamedTuple

from click import style

from dp2ddp.command import terminal
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.project.text_files import TextFile
from dp2ddp.rewrite.edits import Edit, InsertAfter, InsertBefore

#: Below this likeness (0 to 1) a line is another line, not a changed one.
_ALIKE = 0.5
#: A change of more pairs of lines than that is put side by side as it comes.
_MOST_PAIRS = 4000
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_COLORS = {"+": "green", "-": "red"}


class Row(NamedTuple):
    """A line of the old version, from 1, beside one of the new version; None where there is none."""

    old: int | None
    new: int | None
    same: bool


@dataclass
class Hunk:
    """Changed rows that lie together.

    Attributes:
        above: the number of the old line above, 0 at the top.
        edits: those that changed it; none for the import of the runtime.
    """

    rows: list[Row]
    above: int
    edits: list[Edit] = field(default_factory=list)

    @property
    def old(self) -> list[int]:
        """The numbers of its old lines."""
        return [row.old for row in self.rows if row.old is not None]

    @property
    def new(self) -> list[int]:
        """The numbers of its new lines."""
        return [row.new for row in self.rows if row.new is not None]


def lines_of(text: str) -> list[str]:
    """A source's lines as Python counts them: form feeds and the like end none."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def rows(old: Sequence[str], new: Sequence[str]) -> Iterator[Row]:
    """All lines of both versions, in order."""
    for kind, a, a_end, b, b_end in SequenceMatcher(None, old, new).get_opcodes():
        if kind == "equal":
            yield from (Row(a + n + 1, b + n + 1, True) for n in range(a_end - a))
            continue
        most = min(a_end - a, b_end - b) if (a_end - a) * (b_end - b) > _MOST_PAIRS else 0
        yield from (Row(a + n + 1, b + n + 1, False) for n in range(most))
        b += most
        for line in range(a + most, a_end):
            rest = [text.strip() for text in new[b:b_end]]
            near = get_close_matches(old[line].strip(), rest, 1, _ALIKE)
            for _ in range(rest.index(near[0]) if near else 0):
                b += 1
                yield Row(None, b, False)
            b += len(near)
            yield Row(line + 1, b if near else None, False)
        yield from (Row(None, number + 1, False) for number in range(b, b_end))


def hunks(rows: Sequence[Row], edits: Sequence[Edit]) -> list[Hunk]:
    """The hunks of a file, each as small as the edits let it be, with the edits that made it."""
    found: list[Hunk] = []
    above = 0
    for same, part in groupby(rows, key=lambda row: row.same):
        run = list(part)
        if not same:
            found += _split(run, above, edits)
        above = max([above, *(row.old for row in run if row.old is not None)])
    for edit in edits if found else ():
        min(found, key=lambda hunk: _distance(hunk, edit)).edits.append(edit)
    return found


def _split(run: Sequence[Row], above: int, edits: Sequence[Edit]) -> Iterator[Hunk]:
    """A run of changed rows, cut before each old line that no edit holds together with the one before it."""
    hunk = Hunk([], above)
    added: list[Row] = []
    for row in run:
        if row.old is None:
            added.append(row)
            continue
        last = max(hunk.old, default=None)
        if last is not None and not any(e.span.start.line <= last and row.old <= e.span.end.line for e in edits):
            yield hunk
            hunk = Hunk([], last)
        hunk.rows += [*added, row]
        added = []
    hunk.rows += added
    yield hunk


def _distance(hunk: Hunk, edit: Edit) -> tuple[int, int]:
    """How far a hunk is from the lines of an edit; of those that are in reach, the first."""
    first, last = edit.span.start.line, max(edit.span.start.line, edit.span.end.line)
    if isinstance(edit, InsertBefore):
        last = first
    elif isinstance(edit, InsertAfter):
        first = last = last + 1
    # What is only inserted stands before the next old line.
    lines = hunk.old or [hunk.above + 1]
    return min((max(first - line, line - last, 0), line) for line in lines)


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
            terminal.write_result(
                text[:start].encode("utf-8") + text[start:].encode(source.encoding.removesuffix("-sig"))
            )


def diff(name: str, old: str, new: str) -> str:
    """The unified diff from `old` to `new`, as `patch` takes it; newlines as they are in both."""
    name = _quoted(name)
    lines = difflib.unified_diff(_LINE.findall(old), _LINE.findall(new), fromfile=name, tofile=name)
    # A file without a final newline must say so, or the next line of the diff ends up on the same line.
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _quoted(name: str) -> str:
    """A file's name as git and patch write it where it isn't plain text: in quotes, bytes as octal numbers."""
    if name.isprintable() and '"' not in name:
        return name
    data = os.fsencode(name)
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}" for byte in data)
    return f'"{"".join(plain)}"'


def colored(text: str) -> str:
    """A diff in the colors of `git diff`."""
    return "".join(f"{_colored(line)}\n" for line in text.removesuffix("\n").split("\n"))


def _colored(line: str) -> str:
    if line.startswith(("--- ", "+++ ")):
        return style(line, bold=True)
    if line.startswith("@@ "):
        return style(line, fg="cyan")
    return style(line, fg=_COLORS[line[0]]) if line[:1] in _COLORS else line
