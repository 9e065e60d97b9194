"""Carries out all edits of a file: expressions by libcst, statements by lines, and puts the pieces into the text.

What no edit touches is never taken apart, so it comes out byte for byte.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dp2ddp.errors import EditError, NotRewritable
from dp2ddp.rewrite import expressions
from dp2ddp.rewrite.edits import (
    HOLE,
    RUNTIME_USE,
    Done,
    Edit,
    InsertAfter,
    InsertBefore,
    RemoveStatement,
    ReplaceExpr,
    ReplaceStatement,
    WithHoles,
    at,
)
from dp2ddp.rewrite.imports import import_edits, runtime_name
from dp2ddp.source import syntax
from dp2ddp.source.nodes import blocks
from dp2ddp.source.spans import Position, Span, in_characters

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_NEWLINE = re.compile(r"\r\n|\r|\n")
#: What may stand behind a statement that has its line for itself.
_REST = re.compile(r"[ \t\f;]*(?:#|[\r\n]|\Z)")
#: Comes before what is added below the line, where the text ends with it.
_ON_THE_LINE = -sys.maxsize


def apply(text: str, edits: Sequence[Edit]) -> str:
    """The source `text` with `edits` carried out.

    Without edits the text comes back as it is. A byte order mark and any mix of newlines are kept.

    Args:
        text: valid Python source.
        edits: in any order; those on the same node compose in the order given.

    Raises:
        NotRewritable: libcst can't read an expression that is to be edited, though Python can.
        EditError: an edit's span or hole is no node, or its template is no Python: a rule's mistake.
    """
    mark = "\ufeff" * text.startswith("\ufeff")
    return mark + _File(text[len(mark) :]).edited(edits) if edits else text


class _Piece(NamedTuple):
    """Text in the place of what lies between two offsets; at one place, lower ranks come first."""

    start: int
    end: int
    text: str
    rank: int = 0


class _Place(NamedTuple):
    """A statement, the block that it is in, and its number there."""

    statement: ast.stmt
    block: Sequence[ast.stmt]
    number: int


class _File:
    """A source, and where its statements are."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tree = syntax.shared(text, "")
        self._lines: list[str] = _LINE.findall(text)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        newline = _NEWLINE.search(text)
        self._newline = newline[0] if newline else "\n"
        self._runtime = runtime_name(self._tree, text)
        self._places: dict[Position, _Place] = {}
        for block in blocks(self._tree):
            for number, statement in enumerate(block):
                start = self._position(statement.lineno, statement.col_offset)
                self._places[start] = _Place(statement, block, number)

    def edited(self, edits: Sequence[Edit]) -> str:
        """The text with all edits in it."""
        gone = [each.span for each in edits if isinstance(each, (RemoveStatement, ReplaceStatement))]
        kept = [e for e in edits if not any(g.start < e.span.start < g.end or _is_within(e, g) for g in gone)]
        pieces = [*self._expressions([each for each in kept if isinstance(each, ReplaceExpr)])]
        pieces += self._removed([each for each in kept if isinstance(each, RemoveStatement)])
        for edit in [*import_edits(self._tree, self._lines, edits, self._runtime), *kept]:
            if isinstance(edit, InsertAfter):
                pieces.append(self._after(edit))
            elif isinstance(edit, InsertBefore):
                pieces.append(self._before(edit))
            elif isinstance(edit, ReplaceStatement):
                start, end = self._range(edit.span)
                pieces.append(_Piece(start, end, self._joined(edit, self._indent(edit.span))))
            elif not isinstance(edit, (ReplaceExpr, RemoveStatement, Done)):
                raise EditError(f"{edit.rule}: unknown edit {type(edit).__name__}")
        return self._with(pieces)

    def _with(self, pieces: Sequence[_Piece]) -> str:
        found: list[str] = []
        at = 0
        for piece in sorted(pieces, key=lambda each: (each.start, each.end, each.rank)):  # (else in the order given)
            if piece.start < at:
                raise EditError(f"two edits of one piece of source, at offset {piece.start}")
            found += [self._text[at : piece.start], piece.text]
            at = piece.end
        return "".join([*found, self._text[at:]])

    # ---- expressions -----------------------------------------------------------------------------------------------

    def _expressions(self, edits: Sequence[ReplaceExpr]) -> Iterator[_Piece]:
        spans = {edit.span for edit in edits}
        for outer in (span for span in spans if not any(o != span and o.contains(span) for o in spans)):
            start, end = self._range(outer)
            own = [_moved(edit, outer.start) for edit in edits if outer.contains(edit.span)]
            try:
                yield _Piece(start, end, expressions.rewritten(self._text[start:end], own, self._runtime))
            except NotRewritable as error:
                raise NotRewritable(error.what, (error.line or 1) + outer.start.line - 1) from error

    # ---- statements ------------------------------------------------------------------------------------------------

    def _after(self, edit: InsertAfter) -> _Piece:
        place = self._place(edit)
        end = self._offset(self._end(place.statement))
        if not self._is_alone(place.statement):
            return _Piece(end, end, "".join(f"; {line}" for line in self._filled(edit) if line), _ON_THE_LINE)
        below = self._starts[place.statement.end_lineno or 0]
        text = self._joined(edit, self._indent(edit.span), every=True)
        ends_line = self._text[end:below].endswith(("\r", "\n"))
        text = f"{text}{self._newline}" if ends_line else f"{self._newline}{text}"
        # Several statements may end here: what stands deepest goes on first.
        return _Piece(below, below, text, -edit.span.start.column - 1)

    def _before(self, edit: InsertBefore) -> _Piece:
        statement = self._place(edit).statement
        if not self._begins_line(statement):
            start = self._offset(edit.span.start)
            return _Piece(start, start, "".join(f"{line}; " for line in self._filled(edit) if line))
        start = self._starts[self._start(statement).line - 1]
        return _Piece(start, start, self._joined(edit, self._indent(edit.span), every=True) + self._newline)

    def _removed(self, edits: Sequence[RemoveStatement]) -> Iterator[_Piece]:
        gone = {id(self._place(edit).statement) for edit in edits}
        for edit in dict.fromkeys(edits):
            statement, block, number = self._place(edit)
            start, end = self._offset(self._start(statement)), self._offset(self._end(statement))
            if number == 0 and block is not self._tree.body and all(id(each) in gone for each in block):
                yield _Piece(start, end, "pass")
            elif self._is_alone(statement):
                yield _Piece(self._starts[self._start(statement).line - 1], self._starts[statement.end_lineno or 0], "")
            elif number + 1 < len(block) and block[number + 1].lineno == statement.end_lineno:
                yield _Piece(start, self._offset(self._start(block[number + 1])), "")
            else:  # the last on its line
                before = block[number - 1]
                yield _Piece(start if id(before) in gone else self._offset(self._end(before)), end, "")

    def _place(self, edit: Edit) -> _Place:
        found = self._places.get(edit.span.start)
        if found is None:
            raise EditError(f"{edit.rule}: no statement at line {edit.span.start.line}")
        if self._text.startswith("elif", self._offset(edit.span.start)) and isinstance(found.statement, ast.If):
            raise EditError(f"{edit.rule}: the statement at line {edit.span.start.line} is an `elif`; edit its `if`")
        return found

    def _filled(self, edit: WithHoles) -> list[str]:
        """The lines of an edit, with the pieces of the source that its holes stand for."""
        lines = [RUNTIME_USE.sub(self._runtime, line) for line in edit.source.split("\n")]
        return [HOLE.sub(lambda hole: self._text[slice(*self._range(edit.holes[hole[1]]))], line) for line in lines]

    def _joined(self, edit: WithHoles, indent: str, *, every: bool = False) -> str:
        """The lines of an edit at an indentation; the first as well, or only `every` other one."""
        lines = self._filled(edit)
        joined = f"{self._newline}{indent}".join(lines)
        text = f"{indent}{joined}" if every else joined
        return re.sub(r"(?m)^[ \t]+$", "", text)

    def _indent(self, span: Span) -> str:
        return self._lines[span.start.line - 1][: span.start.column]

    def _begins_line(self, statement: ast.stmt) -> bool:
        return not self._lines[statement.lineno - 1][: self._start(statement).column].strip()

    def _is_alone(self, statement: ast.stmt) -> bool:
        """Whether a statement has its lines for itself, but for a comment."""
        end = self._end(statement)
        return self._begins_line(statement) and _REST.match(self._lines[end.line - 1], end.column) is not None

    # ---- places ----------------------------------------------------------------------------------------------------

    def _start(self, statement: ast.stmt) -> Position:
        lines = [statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))]
        return self._position(min(lines), statement.col_offset)

    def _end(self, statement: ast.stmt) -> Position:
        assert statement.end_lineno is not None
        assert statement.end_col_offset is not None
        return self._position(statement.end_lineno, statement.end_col_offset)

    def _position(self, line: int, column: int) -> Position:
        return Position(line, in_characters(self._lines[line - 1], column))

    def _offset(self, place: Position) -> int:
        return self._starts[place.line - 1] + place.column

    def _range(self, span: Span) -> tuple[int, int]:
        return self._offset(span.start), self._offset(span.end)


def _is_within(edit: Edit, gone: Span) -> bool:
    """Whether an expression is all of a statement that goes."""
    return isinstance(edit, ReplaceExpr) and gone.contains(edit.span)


def _moved(edit: ReplaceExpr, start: Position) -> ReplaceExpr:
    """An edit whose spans count from a place, which becomes line 1, column 0."""

    def place(position: Position) -> Position:
        column = position.column - (start.column if position.line == start.line else 0)
        return Position(position.line - start.line + 1, column)

    return at(edit, lambda span: Span(*map(place, span)))
