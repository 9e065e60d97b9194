"""A parsed script: its text, its syntax tree, and where each node stands in both."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Union

from dp2ddp import syntax
from dp2ddp.edits import Position, Span

FunctionNode = Union[ast.FunctionDef, ast.AsyncFunctionDef]
ScopeNode = Union[ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda]
SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(eq=False)
class Source:
    """One script as text and as Python's own syntax tree.

    The tree is Python's `ast`, ten times faster to build and to walk than a concrete one; `span` gives the positions by
    which the concrete tree is rewritten.
    """

    text: str
    filename: str
    tree: ast.Module
    _parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self._parents[child] = node

    @cached_property
    def lines(self) -> list[str]:
        """The source's lines as `ast` counts them (form feeds and the like don't end a line)."""
        return self.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree, parents before children."""
        return list(ast.walk(self.tree))

    @cached_property
    def calls(self) -> list[ast.Call]:
        """Every call, in the order of the text."""
        return sorted((n for n in self.nodes if isinstance(n, ast.Call)), key=_place)

    @cached_property
    def functions(self) -> list[FunctionNode]:
        """Every function and method, in the order of the text."""
        return sorted((n for n in self.nodes if isinstance(n, FUNCTIONS)), key=_place)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node that `node` is a part of, None for the module."""
        return self._parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around `node`, from the nearest outwards."""
        above = self._parents.get(node)
        while above is not None:
            yield above
            above = self._parents.get(above)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that `node` is, or is part of."""
        if isinstance(node, ast.stmt):
            return node
        return next(n for n in self.ancestors(node) if isinstance(n, ast.stmt))

    def scope(self, node: ast.AST) -> ScopeNode:
        """The function, class or module in whose body `node` stands."""
        return next((n for n in self.ancestors(node) if isinstance(n, SCOPES)), self.tree)

    def function(self, node: ast.AST) -> FunctionNode | None:
        """The innermost function around `node`, None at module level."""
        return next((n for n in self.ancestors(node) if isinstance(n, FUNCTIONS)), None)

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements in which `statement` stands."""
        above = self._parents[statement]
        for name in ("body", "orelse", "finalbody", "handlers"):
            block = getattr(above, name, None)
            if isinstance(block, list) and statement in block:
                return block
        raise LookupError(f"line {statement.lineno}: statement without a block")

    def chain_head(self, node: ast.If) -> ast.If:
        """The `if` to which an `elif` belongs; an `if` itself."""
        above = self.parent(node)
        while isinstance(above, ast.If) and above.orelse == [node] and self.segment(node).startswith("elif"):
            node, above = above, self.parent(above)
        return node

    def span(self, node: ast.AST) -> Span:
        """Where `node` stands: lines from 1, columns in characters from 0."""
        start_line, start_col = node.lineno, node.col_offset  # type: ignore[attr-defined]
        end_line, end_col = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        start = Position(start_line, self._column(start_line, start_col))
        return Span(start, Position(end_line, self._column(end_line, end_col)))

    def segment(self, node: ast.AST) -> str:
        """The text of `node`, as written."""
        span = self.span(node)
        (first, start), (last, end) = span.start, span.end
        if first == last:
            return self.lines[first - 1][start:end]
        middle = self.lines[first : last - 1]
        return "\n".join([self.lines[first - 1][start:], *middle, self.lines[last - 1][:end]])

    def brief(self, node: ast.AST, limit: int = 60) -> str:
        """The text of `node` on one line, for reports."""
        text = " ".join(self.segment(node).split())
        return text if len(text) <= limit else text[: limit - 3] + "..."

    def _column(self, line: int, byte_column: int) -> int:
        text = self.lines[line - 1]
        if text.isascii():
            return byte_column
        return len(text.encode("utf-8")[:byte_column].decode("utf-8"))


def parse(text: str, filename: str) -> Source:
    """The parsed script.

    Raises:
        BadInput: it is no Python that this interpreter reads.
    """
    return Source(text, filename, syntax.parse(text, filename))


def _place(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def same(a: ast.AST | None, b: ast.AST | None) -> bool:
    """Whether two expressions are written alike, whatever their place and context."""
    if a is None or b is None:
        return a is b
    return _shape(a) == _shape(b)


def _shape(node: ast.AST) -> str:
    return ast.dump(node).replace("Store()", "Load()")


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of the keyword argument `name`, None where it isn't given by name."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """An argument given by position or by name."""
    if position < len(call.args) and not any(isinstance(a, ast.Starred) for a in call.args[: position + 1]):
        return call.args[position]
    return keyword(call, name)


def is_main_guard(node: ast.AST) -> bool:
    """Whether `node` is `if __name__ == "__main__":`."""
    if not (isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and len(node.test.comparators) == 1):
        return False
    sides = [node.test.left, node.test.comparators[0]]
    names = any(isinstance(s, ast.Name) and s.id == "__name__" for s in sides)
    return names and any(isinstance(s, ast.Constant) and s.value == "__main__" for s in sides)
