"""Where something stands in a source: lines and columns, in characters (`ast` counts bytes)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Position(NamedTuple):
    """A place in the source: line from 1, column from 0, counted in characters (not UTF-8 bytes, as `ast` does)."""

    line: int
    column: int


class Span(NamedTuple):
    """Where a syntax node lies, end exclusive.

    An expression's span leaves out parentheses around it. Tuples and generator expressions may be given either way
    (`ast` counts their parentheses, libcst doesn't). Of a statement's span only the start counts.
    """

    start: Position
    end: Position

    @classmethod
    def of(cls, line: int, column: int, end_line: int, end_column: int) -> Span:
        """The span from `line`:`column` to `end_line`:`end_column`."""
        return cls(Position(line, column), Position(end_line, end_column))

    def contains(self, other: Span) -> bool:
        """Whether `other` lies inside this span; a span contains itself."""
        return self.start <= other.start and other.end <= self.end


def moved(span: Span, lines: int) -> Span:
    """`span`, so many lines further down."""
    (start, column), (end, end_column) = span
    return Span.of(start + lines, column, end + lines, end_column)


def in_characters(line: str, column: int) -> int:
    """A column that `ast` counts in bytes of UTF-8."""
    return column if line.isascii() else len(line.encode("utf-8")[:column].decode("utf-8", "ignore"))


def text_at(span: Span, lines: Sequence[str]) -> str:
    """The text at `span`; the rest of the line where the end isn't known."""
    (line, column), (end, end_column) = span
    if end <= line:
        return lines[line - 1][column : end_column if end_column > column else None]
    return "\n".join([lines[line - 1][column:], *lines[line : end - 1], lines[end - 1][:end_column]])


def in_brief(text: str, most: int) -> str:
    """Source on one line of at most so many characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 3]}..."
