"""Lines that a bracket is open over, aligned to what stands behind that bracket: they move with it.

Where the bracket is the last thing in its line, or they begin before it, they are aligned to nothing, and stay. Lines
behind a backslash move with their statement.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import libcst as cst
from libcst.metadata import PositionProvider
from libcst.metadata.position_provider import WhitespaceInclusivePositionProvidingCodegenState


class Place(NamedTuple):
    """Where the line begins that comes behind a line break in brackets.

    Attributes:
        bracket: the column of the innermost bracket; None where nothing is aligned to it.
        indent: how far the statement is indented.
    """

    bracket: int | None
    indent: int


def _is_continued(node: cst.CSTNode) -> bool:
    """Whether a node is white space with a line break behind a backslash."""
    return type(node) is cst.SimpleWhitespace and "\\" in node.value


class _Brackets:
    """The brackets that are open as a tree is written, token by token."""

    def __init__(self) -> None:
        self._open: list[list[int | None]] = []  # the column, and how far its line was moved
        self._is_first = False
        self._in_text = False

    def add(self, token: str, column: int, moved: int = 0) -> None:
        """A token ends at a column, in a line that was moved."""
        if self._in_text:
            return
        if token in ("(", "[", "{"):
            self._open.append([column - 1, moved])
            self._is_first = True
        elif token in (")", "]", "}"):
            self._open.pop()
            self._is_first = False
        elif token.strip() and not token.startswith("#"):
            self._is_first = False

    def enter(self, node: cst.CSTNode) -> None:
        """What a text holds is no bracket."""
        self._in_text = type(node) is cst.FormattedStringText

    def at(self, indent: int) -> tuple[Place, int]:
        """The place of a line break that comes now, and how far the line of its bracket was moved."""
        if not self._open:
            return Place(None, indent), 0
        if self._is_first:
            self._open[-1][0] = None
        column, moved = self._open[-1]
        return Place(column, indent), moved or 0


class _Aligning(WhitespaceInclusivePositionProvidingCodegenState):
    """Writes a tree, and moves lines that stood elsewhere before; `found` is where they stand."""

    def __init__(self, module: cst.Module, places: Mapping[int, Place]) -> None:
        super().__init__(module.default_indent, module.default_newline, PositionProvider())
        self.found: dict[int, Place] = {}
        self._places = places
        self._brackets = _Brackets()
        self._moved = (0, 0)  # a line, and how far it was moved
        self._breaks: list[tuple[int, int]] = []  # the line in which one begins, and how far what follows goes

    def add_token(self, value: str) -> None:
        super().add_token(value)
        line, by = self._moved
        self._brackets.add(value, self.column, by if line == self.line else 0)

    def before_codegen(self, node: cst.CSTNode) -> None:
        self._brackets.enter(node)
        if type(node) is cst.ParenthesizedWhitespace:
            self._breaks.append((self.line, self._distance(node)))
        elif _is_continued(node):
            self.found[id(node)] = self._brackets.at(self._indent())[0]
        elif type(node) is cst.Comment and self._breaks and self.line > self._breaks[-1][0]:
            self._move(self._breaks[-1][1])

    def after_codegen(self, node: cst.CSTNode) -> None:
        self._brackets.enter(_NOTHING)
        if type(node) is cst.ParenthesizedWhitespace:
            by = self._breaks.pop()[1]
            self._move(by)
            self._moved = (self.line, by)
        elif _is_continued(node) and (before := self._places.get(id(node))) is not None:
            self._move(self._indent() - before.indent)

    def _distance(self, node: cst.ParenthesizedWhitespace) -> int:
        before = self._places.get(id(node))
        now, moved = self._brackets.at(self._indent())
        self.found[id(node)] = now
        if before is None or before.bracket is None or now.bracket is None:
            return moved
        column = len(node.last_line.value) + (before.indent if node.indent else 0)
        if column <= before.bracket:  # a hanging indent, as behind `torch.save({`
            return moved
        return now.bracket - before.bracket - (now.indent - before.indent if node.indent else 0)

    def _indent(self) -> int:
        return sum(map(len, self.indent_tokens))

    def _move(self, by: int) -> None:
        if by > 0:
            super().add_token(" " * by)
        elif by < 0:
            last = self.tokens.pop()
            kept = last.rstrip(" ")
            self.tokens.append(last[: max(len(kept), len(last) + by)])
            self.column -= len(last) - len(self.tokens[-1])


_NOTHING = cst.Pass()


def aligned(module: cst.Module, places: Mapping[int, Place] | None = None) -> tuple[str, Mapping[int, Place]]:
    """The text of a tree, whose line breaks stood at `places` in the one that it came from; where they stand now."""
    state = _Aligning(module, places or {})
    module._codegen(state)
    return "".join(state.tokens), state.found
