"""Finds the nodes of a libcst tree that edits name by their position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Union, cast

import libcst as cst
from libcst.metadata import CodeRange

from dp2ddp.errors import EditError
from dp2ddp.rewrite.edits import Edit, RemoveStatement, ReplaceExpr, WithHoles, WithLines
from dp2ddp.rewrite.templates import hole_names, is_hole_line
from dp2ddp.source.spans import Position, Span

#: Where each node lies, white space around it left out.
Positions = Mapping[cst.CSTNode, CodeRange]
StatementEdit = Union[WithLines, RemoveStatement]
_STATEMENT_EDITS = (WithLines, RemoveStatement)
_STATEMENTS = (cst.BaseCompoundStatement, cst.BaseSmallStatement)


@dataclass
class Located:
    """Edits by the identity of the node that they are on.

    Attributes:
        expressions: of each expression that is edited or fills a hole, the edits on it.
        statements: of each statement that is edited or fills a hole, the edits on it.
        with_parentheses: tuples and generators whose span was given with their parentheses.
    """

    expressions: dict[int, list[ReplaceExpr]] = field(default_factory=dict)
    statements: dict[int, list[StatementEdit]] = field(default_factory=dict)
    with_parentheses: set[int] = field(default_factory=set)
    _holes: dict[tuple[int, str], cst.CSTNode] = field(default_factory=dict)

    def hole(self, edit: WithHoles, name: str) -> cst.CSTNode:
        """The node that fills the hole `name` of `edit`."""
        return self._holes[id(edit), name]


def locate(positions: Positions, edits: Sequence[Edit]) -> Located:
    """Finds the node of every edit and hole.

    Raises:
        EditError: no node lies where an edit says, a hole lies outside, or template and holes don't match.
    """
    located = Located()
    finder = _Finder(positions, edits, located)
    for edit in edits:
        if isinstance(edit, ReplaceExpr):
            node = finder.expression(edit, edit.span)
            located.expressions.setdefault(id(node), []).append(edit)
        elif isinstance(edit, _STATEMENT_EDITS):
            statement = finder.statement(edit, edit.span)
            located.statements.setdefault(id(statement), []).append(edit)
        else:
            raise EditError(f"{edit.rule}: unknown edit {type(edit).__name__}")
        if isinstance(edit, WithHoles):
            finder.holes(edit)
    return located


@cache
def _kind(node: type[cst.CSTNode]) -> type[cst.CSTNode] | None:
    """Whether nodes of a class are statements, expressions or neither; asked once: abstract classes answer slowly."""
    if issubclass(node, _STATEMENTS):
        return cst.BaseStatement
    return cst.BaseExpression if issubclass(node, cst.BaseExpression) else None


def _span(place: CodeRange) -> Span:
    return Span.of(place.start.line, place.start.column, place.end.line, place.end.column)


class _Finder:
    """The nodes at the positions that the edits name, collected in one walk over the positions."""

    def __init__(self, positions: Positions, edits: Sequence[Edit], located: Located) -> None:
        self.located = located
        spans = set(_spans(edits))
        starts = {span.start for span in spans}
        self.expressions: dict[Span, cst.BaseExpression] = {}
        self.statements: dict[Position, tuple[Position, cst.CSTNode]] = {}
        for node, place in positions.items():
            kind = _kind(type(node))
            # Most nodes begin where no edit does.
            span = _span(place) if (place.start.line, place.start.column) in starts else None
            if kind is cst.BaseExpression:
                if span in spans:
                    self.expressions[span] = cast("cst.BaseExpression", node)
                if isinstance(node, (cst.Tuple, cst.GeneratorExp)):
                    self._with_parentheses(node, positions, _span(place), spans)
            elif kind is cst.BaseStatement and span is not None:
                self.statements[span.start] = (span.end, node)

    def _with_parentheses(
        self, node: cst.Tuple | cst.GeneratorExp, positions: Positions, inner: Span, spans: set[Span]
    ) -> None:
        """Enters a tuple or generator under the span that `ast` gives it, its parentheses included."""
        if node.lpar:
            first, last = positions[node.lpar[-1]].start, positions[node.rpar[0]].end
            span = Span.of(first.line, first.column, last.line, last.column)
        else:  # the only argument of a call: the call's own parentheses
            span = Span.of(inner.start.line, inner.start.column - 1, inner.end.line, inner.end.column + 1)
        if span in spans:
            self.expressions[span] = node
            if node.lpar:
                self.located.with_parentheses.add(id(node))

    def expression(self, edit: Edit, span: Span) -> cst.BaseExpression:
        node = self.expressions.get(span)
        if node is None:
            raise EditError(f"{edit.rule}: no expression at {show(span)}")
        return node

    def statement(self, edit: Edit, span: Span) -> cst.CSTNode:
        found = self.statements.get(span.start)
        if found is None:
            raise EditError(f"{edit.rule}: no statement at {show(span)}")
        return found[1]

    def holes(self, edit: WithHoles) -> None:
        """Finds what fills the holes of `edit`."""
        if hole_names(edit.source) != set(edit.holes):
            raise EditError(f"{edit.rule}: the holes {sorted(edit.holes)} are not those of {edit.source!r}")
        for name, span in edit.holes.items():
            if isinstance(edit, ReplaceExpr) and not edit.span.contains(span):
                raise EditError(f"{edit.rule}: the hole {name!r} at {show(span)} is outside {show(edit.span)}")
            self.located._holes[id(edit), name] = self._hole(edit, name, span)

    def _hole(self, edit: WithHoles, name: str, span: Span) -> cst.CSTNode:
        found = self.statements.get(span.start)
        if found and isinstance(edit, WithLines) and is_hole_line(edit.lines, name):
            end, statement = found
            if span not in self.expressions or end == span.end:
                self.located.statements.setdefault(id(statement), [])
                return statement
        node = self.expression(edit, span)
        self.located.expressions.setdefault(id(node), [])
        return node


def _spans(edits: Iterable[Edit]) -> Iterable[Span]:
    for edit in edits:
        yield edit.span
        yield from edit.holes.values() if isinstance(edit, WithHoles) else ()


def show(span: Span) -> str:
    """A span as messages have it."""
    return f"{span.start[0]}:{span.start[1]}-{span.end[0]}:{span.end[1]}"
