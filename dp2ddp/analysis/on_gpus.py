"""What expressions are on a machine with so many GPUs, as far as a script says."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from dp2ddp.analysis.launch.effects import ASKS_TORCH
from dp2ddp.analysis.visible import DEVICE_COUNTS, means_all, only_value

if TYPE_CHECKING:
    from dp2ddp.analysis.facts import Facts


class _UnknownError(Exception):
    """What an expression is can't be told."""


class OnGpus:
    """What expressions are on a machine with so many GPUs."""

    def __init__(self, facts: Facts, count: int) -> None:
        self._facts = facts
        self._count = count
        self._asked: set[ast.AST] = set()

    def is_true(self, test: ast.expr) -> bool:
        """Whether a test is true there for sure."""
        try:
            return bool(self._value(test))
        except _UnknownError:
            return False

    def _value(self, node: ast.AST | None) -> Any:
        if node is None or node in self._asked:
            raise _UnknownError
        self._asked.add(node)
        try:
            return getattr(self, f"_{type(node).__name__.lower()}", self._other)(node)
        finally:
            self._asked.discard(node)

    def _other(self, node: ast.AST) -> Any:
        raise _UnknownError

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        return self._value(only_value(self._facts, node))

    def _attribute(self, node: ast.Attribute) -> Any:
        stores = [n for n in self._facts.source.nodes if isinstance(n, ast.Attribute) and n.attr == node.attr]
        stores = [each for each in stores if isinstance(each.ctx, ast.Store)]
        above = self._facts.source.parent(stores[0]) if len(stores) == 1 else None
        if isinstance(above, ast.Assign) and ast.unparse(stores[0]) == ast.unparse(node):  # args.n_gpu = device_count()
            return self._value(above.value)
        value = self._value(node.value)
        if node.attr != "type" or not isinstance(value, str):  # of a `torch.device`
            raise _UnknownError
        return value.split(":")[0]

    def _call(self, node: ast.Call) -> Any:
        path = self._facts.names.qualified(node.func) or ""
        if path in DEVICE_COUNTS or (path == "builtins.len" and node.args and means_all(self._facts, node.args[0])):
            return self._count
        if path == "torch.device" and node.args:
            return self._value(node.args[0])
        if not ASKS_TORCH.fullmatch(path) or ".cuda." not in path:
            raise _UnknownError
        return True

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self._value(node.body if self._value(node.test) else node.orelse)

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        if not isinstance(node.op, ast.Not):
            raise _UnknownError
        return not self._value(node.operand)

    def _boolop(self, node: ast.BoolOp) -> Any:
        values = [self.is_true(each) for each in node.values]
        if isinstance(node.op, ast.Or) and any(values):
            return True
        if not all(values):
            raise _UnknownError
        return True

    def _compare(self, node: ast.Compare) -> Any:
        compare = _COMPARE.get(type(node.ops[0]))
        if len(node.ops) != 1 or compare is None:
            raise _UnknownError
        return getattr(self._value(node.left), compare)(self._value(node.comparators[0])) is True


_COMPARE: dict[type, str] = {
    ast.Eq: "__eq__",
    ast.NotEq: "__ne__",
    ast.Gt: "__gt__",
    ast.GtE: "__ge__",
    ast.Lt: "__lt__",
    ast.LtE: "__le__",
}
