"""Leaves out of a source what no edit touches, before libcst reads it, and puts it back behind that.

libcst takes a millisecond for a line, kilobytes of stack for a level of nesting, and minutes for an expression of some
thousand levels (a long sum). Most statements of a script have nothing to be changed in them: in their place a short
one stands meanwhile, of as many lines, so that all positions stay.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from dp2ddp.errors import NotRewritable
from dp2ddp.rewrite.edits import Edit, RemoveStatement, ReplaceStatement, WithHoles
from dp2ddp.source.spans import in_characters

_MARK = "__dp2ddp_kept__"
_PUT_BACK = re.compile(rf"(?:if )?{_MARK}\('''(\d+)[\r\n]*'''\)(?:: pass)?")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_END_OF_LINE = re.compile(r"[ \t\f]*(?:#|[\r\n]|\Z)")
_LONE_RETURN = re.compile(r"\r(?!\n)")
#: What moves a statement to another indentation, or away.
_MOVING = (ReplaceStatement, RemoveStatement)
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")
_GOES_ON = ("\\\n", "\\\r\n", "\\\r")
#: Levels of nesting in a statement that libcst reads within seconds.
_DEEPEST = 1000

Position = tuple[int, int]


@dataclass(frozen=True)
class Shortened:
    """A source with markers in the place of some statements.

    Attributes:
        text: what is left.
        kept: the statements, by the number in their marker.
    """

    text: str
    kept: Sequence[str]

    def whole(self, text: str) -> str:
        """`text`, which came of this one, with the statements back in their places."""
        return _PUT_BACK.sub(lambda mark: self.kept[int(mark[1])], text) if self.kept else text


def lines_of(text: str) -> list[str]:
    """A source's lines, with their ends."""
    return _LINE.findall(text)


def shortened(text: str, lines: Sequence[str], tree: ast.Module, edits: Sequence[Edit]) -> Shortened:
    """The source `text`, whose syntax tree is `tree`, without the statements that `edits` neither change nor move.

    Raises:
        NotRewritable: what has to be changed is nested too deeply for libcst.
    """
    if _MARK in text:
        return Shortened(text, ())
    finder = _Finder(lines, edits)
    finder.look_through(tree)
    kept: list[str] = []
    pieces: list[str] = []
    at: Position = (1, 0)
    for run in sorted(finder.runs, key=lambda run: run.start):
        pieces.append(_between(lines, at, run.start))
        left_out = _between(lines, run.start, run.end)
        newlines = "".join(re.findall(r"[\r\n]", left_out))
        mark = f"{_MARK}('''{len(kept)}{newlines}''')"
        pieces.append(f"if {mark}: pass" if run.is_compound else mark)
        kept.append(left_out)
        at = run.end
    pieces.append(_between(lines, at, (len(lines), len(lines[-1]))))
    return Shortened("".join(pieces), kept)


@dataclass(frozen=True)
class _Run:
    """Statements in a row that are left out; lines from 1, columns in characters from 0."""

    start: Position
    end: Position
    is_compound: bool


class _Finder:
    """Collects what can be left out."""

    def __init__(self, lines: Sequence[str], edits: Sequence[Edit]) -> None:
        self.runs: list[_Run] = []
        self._lines = lines
        holes = [span for edit in edits if isinstance(edit, WithHoles) for span in edit.holes.values()]
        spans = [*(edit.span for edit in edits), *holes]
        self._wanted = sorted((span[0][0], span[0][1]) for span in spans)
        self._moved = {(edit.span[0][0], edit.span[0][1]) for edit in edits if isinstance(edit, _MOVING)}
        self._has_indent = False

    def look_through(self, tree: ast.Module) -> None:
        """Goes through all blocks in which something stays."""
        blocks: list[list[ast.stmt]] = [tree.body]
        while blocks:
            # The first indented block is looked at first: by it libcst knows how the file indents.
            blocks += reversed(list(self._block(blocks.pop())))

    def _block(self, block: Sequence[ast.stmt]) -> Iterator[list[ast.stmt]]:
        """Leaves out what can be of a block; yields the blocks inside of what stays."""
        row: list[_Run] = []
        for statement in block:
            run = self._run(statement)
            if run is None:
                self._close(row)
                yield from self._inside(statement)
            else:
                row.append(run)
        self._close(row)

    def _close(self, row: list[_Run]) -> None:
        """Enters statements in a row as one, unless a line between them ends as libcst doesn't count it in a string."""
        if len(row) > 1 and not _LONE_RETURN.search(_between(self._lines, row[0].start, row[-1].end)):
            row[:] = [_Run(row[0].start, row[-1].end, False)]
        self.runs += row
        row.clear()

    def _inside(self, statement: ast.stmt) -> Iterator[list[ast.stmt]]:
        if self._start(statement) in self._moved:
            return
        if _is_deep(statement):
            raise NotRewritable(f"an expression of more than {_DEEPEST} levels", statement.lineno)
        todo: list[ast.AST] = [statement]
        while todo:
            node = todo.pop(0)
            for inner in _blocks(node):
                if isinstance(inner[0], ast.stmt):
                    yield cast("list[ast.stmt]", inner)
                else:  # handlers and cases
                    todo += inner

    def _run(self, statement: ast.stmt) -> _Run | None:
        """A statement as it can be left out, None where it stays."""
        first_line = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])
        line = self._lines[first_line - 1]
        start = (first_line, len(line) - len(line.lstrip(" \t\f")))
        body = next(iter(_blocks(statement)), None)
        end = self._end(statement)
        if body and not self._has_indent and self._indents(body[0]):
            self._has_indent = True
            return None
        index = bisect_left(self._wanted, start)
        touched = index < len(self._wanted) and self._wanted[index] < end
        if touched or not self._is_alone(statement, start, end):
            return None
        if body:
            end = self._with_footer(end, body[0])
        text = _between(self._lines, start, end)
        if _LONE_RETURN.search(text):  # a line's end that libcst doesn't count in a string
            return None
        return _Run(start, end, bool(body))

    def _indents(self, first: ast.AST) -> bool:
        """Whether the first statement of a block, or the first of its cases, stands in a line of its own."""
        number: int = getattr(first, "lineno", None) or first.pattern.lineno  # type: ignore[attr-defined]
        line = self._lines[number - 1]
        return line[: len(line) - len(line.lstrip(" \t\f"))] != "" and not self._lines[number - 2].endswith(_GOES_ON)

    def _start(self, statement: ast.stmt) -> Position:
        return statement.lineno, self._column(statement.lineno, statement.col_offset)

    def _end(self, statement: ast.stmt) -> Position:
        line, column = statement.end_lineno, statement.end_col_offset
        assert line is not None
        assert column is not None
        return line, self._column(line, column)

    def _column(self, line: int, column: int) -> int:
        return in_characters(self._lines[line - 1], column)

    def _is_alone(self, statement: ast.stmt, start: Position, end: Position) -> bool:
        """Whether a statement has its lines for itself, but for a comment."""
        line = self._lines[start[0] - 1]
        begins = line.startswith("@", start[1]) or self._start(statement) == start
        is_branch = isinstance(statement, ast.If) and line.startswith("elif", start[1])
        goes_on = start[0] > 1 and self._lines[start[0] - 2].endswith(_GOES_ON)
        ends = _END_OF_LINE.match(self._lines[end[0] - 1], end[1]) is not None
        return begins and not is_branch and not goes_on and ends

    def _with_footer(self, end: Position, first: ast.AST) -> Position:
        """The end of a compound statement, with the comments below that are indented as its block."""
        indent: int = getattr(first, "col_offset", 0)
        number = end[0]
        found = end
        while number < len(self._lines):
            line = self._lines[number].rstrip("\r\n")
            text = line.strip(" \t\f")
            if text and not (text.startswith("#") and len(line) - len(line.lstrip(" \t\f")) >= indent):
                break
            number += 1
            if text:
                found = (number, len(line))
        return found


def _blocks(node: ast.AST) -> Iterator[list[ast.AST]]:
    """The lists of statements, handlers or cases of a compound statement."""
    for name in _BLOCKS:
        inner = getattr(node, name, None)
        if isinstance(inner, list) and inner:
            yield inner


def _is_deep(statement: ast.stmt) -> bool:
    """Whether a statement, the blocks in it left out, is nested too deeply."""
    apart = {id(node) for inner in _blocks(statement) for node in inner}
    level: list[ast.AST] = [child for child in ast.iter_child_nodes(statement) if id(child) not in apart]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return False
    return True


def _between(lines: Sequence[str], start: Position, end: Position) -> str:
    (first, column), (last, end_column) = start, end
    if first == last:
        return lines[first - 1][column:end_column]
    return "".join([lines[first - 1][column:], *lines[first : last - 1], lines[last - 1][:end_column]])
