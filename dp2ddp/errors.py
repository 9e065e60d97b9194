"""Errors that a user can meet, each one clear line."""

from __future__ import annotations

import os
import re
from typing import Any


class BadInput(Exception):  # noqa: N818 - it is the user's input that is wrong, not the program
    """The input can't be converted. Nothing is written; the command ends with exit code 2.

    Attributes:
        file: the file's name as the user gave it.
        line: from 1, where known.
        column: from 1, where known.
        what: what is wrong.
        todo: what the user can do about it.
        rule: the id of the rule that says so, where one does.
    """

    def __init__(
        self,
        file: str,
        *,
        what: str,
        todo: str = "",
        line: int | None = None,
        column: int | None = None,
        rule: str = "",
    ) -> None:
        super().__init__(file, line, column, what, todo)
        self._more: dict[str, Any] = {"what": what, "todo": todo, "line": line, "column": column, "rule": rule}
        self.file = file
        self.line = line
        self.column = column
        self.what = what
        self.todo = todo
        self.rule = rule

    def renamed(self, file: str) -> BadInput:
        """The same, about the file by another name."""
        return BadInput(file, **self._more)

    def __str__(self) -> str:
        """``file:line:col: what; todo``, leaving out what is not known."""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        text = f"{place}: {self.what}"
        return printable(f"{text}; {self.todo}" if self.todo else text)


def of_system(error: OSError) -> BadInput:
    """What the operating system refused, where nobody could say more about it: no open files left, a full disk..."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else "input or output"
    return BadInput(name, what=f"can't be read or written ({error.strerror or error})")


def printable(text: str) -> str:
    r"""`text` as one line that a terminal shows as it is: what would move its cursor, turn the writing direction, or be
    no text at all (bytes of a file name that are not UTF-8) is written as ``\x1b``, ``\u202e``, ``\udcff``."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


#: The colors that we use ourselves.
_STYLE = re.compile("(\x1b\\[[0-9]{1,2}m)")


def printable_lines(text: str) -> str:
    """As `printable`, of several lines, and with our own colors in them."""
    if text.replace("\n", "").isprintable():
        return text
    parts = _STYLE.split(text)
    return "".join(
        part if number % 2 else "\n".join(map(printable, part.split("\n"))) for number, part in enumerate(parts)
    )


class NotRewritable(Exception):  # noqa: N818 - nothing failed; the source is out of libcst's reach
    """Python reads the source, but libcst doesn't, or doesn't keep every byte of it.

    Attributes:
        line: from 1, where known.
        what: what can't be kept.
    """

    def __init__(self, what: str, line: int | None = None) -> None:
        super().__init__(what, line)
        self.what = what
        self.line = line


class EditError(Exception):
    """A rule asked for an edit that can't be carried out: a mistake in dp2ddp, never in the user's script."""
