"""The loops over epochs around a pass over a loader, in its own function or in those that call it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from dp2ddp.analysis.control.loops import DataLoop, Loops, is_path, local_names
from dp2ddp.source.program import FUNCTIONS, FunctionNode


@dataclass(frozen=True)
class EpochLoop:
    """`for epoch in range(...):` around a pass over a loader.

    Attributes:
        node: the `for` statement.
        epoch: the name of its variable.
        loader: the loader's name as it is written in the loop's scope.
    """

    node: ast.For
    epoch: str
    loader: str


class Epochs:
    """Finds the loops, and by which names callers know what a function iterates over."""

    def __init__(self, loops: Loops) -> None:
        self.loops = loops
        self.source = loops.source
        self.names = loops.names
        self.resolver = loops.resolver

    def around(self, loop: DataLoop) -> list[EpochLoop]:
        """The epoch loops around a data loop, in its own function or in the callers of that function."""
        if loop.loader is None:
            return []
        return self._epochs_above(loop.node, self.source.segment(loop.loader), loop.loader, frozenset())

    def _epochs_above(
        self, node: ast.AST, text: str, loader: ast.expr | None, seen: frozenset[FunctionNode]
    ) -> list[EpochLoop]:
        for above in self.source.ancestors(node):
            if isinstance(above, ast.For) and self._counts_epochs(above):
                assert isinstance(above.target, ast.Name)
                return [EpochLoop(above, above.target.id, text)]
            if isinstance(above, FUNCTIONS):
                return [] if above in seen else self._epochs_of_callers(above, text, seen | {above})
        return []

    def _epochs_of_callers(self, function: FunctionNode, text: str, seen: frozenset[FunctionNode]) -> list[EpochLoop]:
        found: list[EpochLoop] = []
        for call in self.source.calls:
            for callee in self.resolver.functions_called(call):
                if callee.definition is not function:
                    continue
                theirs = self.written_by_caller(call, function, text)
                if theirs is not None:
                    found += self._epochs_above(call, theirs, None, seen)
        return list({e.node: e for e in found}.values())

    def written_by_caller(self, call: ast.Call, function: FunctionNode, text: str) -> str | None:
        """How the caller writes what `function` knows as `text`, None where it has no name there."""
        root = _root_of(text)
        index = {n.id for n in ast.walk(ast.parse(text, mode="eval")) if isinstance(n, ast.Name)} - {root}
        if index & local_names(function):
            return None  # the caller has no such index
        parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        is_method = isinstance(self.source.parent(function), ast.ClassDef)
        if is_method and parameters and root == parameters[0]:
            if isinstance(call.func, ast.Attribute) and is_path(call.func.value):
                return self.source.segment(call.func.value) + text[len(root) :]
            return None
        if root not in parameters:
            local = any(
                isinstance(n, ast.Name) and n.id == root and isinstance(n.ctx, ast.Store) for n in ast.walk(function)
            )
            here = self.source.module(call) is self.source.module(function)
            return text if here and not local else None
        position = parameters.index(root) - int(is_method)
        given = next((k.value for k in call.keywords if k.arg == root), None)
        if given is None and position < len(call.args):
            given = call.args[position]
        return self.source.segment(given) + text[len(root) :] if given is not None and is_path(given) else None

    def _counts_epochs(self, node: ast.For) -> bool:
        """Whether a `for` counts, and isn't within a pass over a loader."""
        is_plain = isinstance(node.target, ast.Name)
        return is_plain and self.loops.is_count(node.iter) and not self._stands_in_data_loop(node)

    def _stands_in_data_loop(self, node: ast.For) -> bool:
        nodes = {loop.node for loop in self.loops.data_loops}
        return any(above in nodes for above in self.source.ancestors(node))


def _root_of(path: str) -> str:
    """The name that a path starts with."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]
