"""A libcst tree as text, together with where each node lies in it: one walk, where libcst's own way takes two or three.

The same states of libcst's code generation, without their generators and regular expressions for every token.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import cast

import libcst as cst
from libcst.metadata import CodePosition, CodeRange, PositionProvider
from libcst.metadata.position_provider import PositionProvidingCodegenState

from dp2ddp.rewrite.aligned import Brackets, Place, is_continued

Positions = Mapping[cst.CSTNode, CodeRange]


class _Recording:
    """Records where a node lies without the white space around it."""

    __slots__ = ("_end", "_from", "_node", "_start", "_state")

    def __init__(
        self,
        state: PositionProvidingCodegenState,
        node: cst.CSTNode,
        start: cst.CSTNode | None,
        end: cst.CSTNode | None,
    ) -> None:
        self._state, self._node, self._start, self._end = state, node, start, end

    def __enter__(self) -> None:
        self._from = CodePosition(self._state.line, self._state.column)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        known = cast("dict[cst.CSTNode, CodeRange]", self._state.provider._computed)
        start = self._from if self._start is None else known[self._start].start
        end = CodePosition(self._state.line, self._state.column) if self._end is None else known[self._end].end
        known[self._node] = CodeRange(start, end)


class _State(PositionProvidingCodegenState):
    def __init__(self, module: cst.Module, provider: PositionProvider) -> None:
        super().__init__(module.default_indent, module.default_newline, provider)
        self.brackets = Brackets()

    def add_token(self, value: str) -> None:
        super().add_token(value)
        self.brackets.add(value, self.column)

    def before_codegen(self, node: cst.CSTNode) -> None:
        super().before_codegen(node)
        self.brackets.enter(node)
        if type(node) is cst.ParenthesizedWhitespace or is_continued(node):
            self.brackets.places[id(node)] = self.brackets.at(sum(map(len, self.indent_tokens)))[0]

    def after_codegen(self, node: cst.CSTNode) -> None:
        super().after_codegen(node)
        self.brackets.enter(_NOTHING)

    def _update_position(self, value: str) -> None:
        if "\n" in value or "\r" in value:
            super()._update_position(value)
        else:
            self.column += len(value)

    def record_syntactic_position(  # type: ignore[override]
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> _Recording:
        return _Recording(self, node, start_node, end_node)


_NOTHING = cst.Pass()


def written(module: cst.Module) -> tuple[str, Positions, Mapping[int, Place]]:
    """The text of a module, where each of its nodes lies, white space around it left out, and where its lines break."""
    provider = PositionProvider()
    state = _State(module, provider)
    module._codegen(state)
    return "".join(state.tokens), cast("Positions", provider._computed), state.brackets.places
