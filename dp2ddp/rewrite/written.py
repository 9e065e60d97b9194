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
    def _update_position(self, value: str) -> None:
        if "\n" in value or "\r" in value:
            super()._update_position(value)
        else:
            self.column += len(value)

    def record_syntactic_position(  # type: ignore[override]
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> _Recording:
        return _Recording(self, node, start_node, end_node)


def written(module: cst.Module) -> tuple[str, Positions]:
    """The text of a module, and where each of its nodes lies, white space around it left out."""
    provider = PositionProvider()
    state = _State(module.default_indent, module.default_newline, provider)
    module._codegen(state)
    return "".join(state.tokens), cast("Positions", provider._computed)
