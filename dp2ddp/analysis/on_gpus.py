"""What expressions are on a machine with so many GPUs, as far as a script says."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from dp2ddp.analysis.bound_once import only_value, switched
from dp2ddp.analysis.control.conditions import joined, negated, terms
from dp2ddp.analysis.device_names import counts_visible
from dp2ddp.analysis.launch.effects import ASKS_TORCH
from dp2ddp.analysis.launch.placement import Launch
from dp2ddp.analysis.visible import DEVICE_COUNTS, means_all, stores_of
from dp2ddp.source.nodes import parameters

if TYPE_CHECKING:
    from dp2ddp.analysis.facts import Facts


_MANY = 64  # GPUs, more than a script asks for by number


def all_terms(facts: Facts, launch: Launch, node: ast.AST) -> Iterator[ast.expr]:
    """What must be true for a wrap to be reached from the launch, through functions that are called once."""
    assert launch.statement is not None
    start = facts.source.function(launch.statement)
    passed = set()
    while True:
        yield from terms(facts.source, node, raising=False)
        function = facts.source.function(node)
        callers = facts.callers.of(function) if function is not None else []
        # (A call inside of the function itself comes behind one of the others.)
        calls = [c for c in callers if facts.source.function(c) is not function and facts.comes_to(launch, c)]
        if function is start or function is None or function in passed or len(calls) != 1:
            return
        passed.add(function)
        node = calls[0]


def is_true_anyway(facts: Facts, test: ast.expr, least: int) -> bool:
    """Whether a condition is true wherever there are that many GPUs, or more."""
    return all(OnGpus(facts, count).is_true(test) for count in (*range(least, _MANY), 10 * _MANY))


def on_gpus(facts: Facts, test: ast.expr, least: int) -> ast.expr:
    """A condition as it is wherever there are that many GPUs, or more: `a` for `a and torch.cuda.is_available()`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return negated(on_gpus(facts, test.operand, least))
    if not isinstance(test, ast.BoolOp):
        return test
    is_and = isinstance(test.op, ast.And)
    says = [each for each in test.values if not is_true_anyway(facts, each if is_and else negated(each), least)]
    return test if len(says) in (0, len(test.values)) else joined(test.op, says)


def runs_on_gpus(facts: Facts, launch: Launch, node: ast.AST) -> bool:
    """Whether a line behind the launch may be reached where there is a GPU."""
    return not any(is_true_anyway(facts, negated(term), 1) for term in all_terms(facts, launch, node))


def needs_gpus(facts: Facts, test: ast.expr) -> bool:
    """Whether a condition is false wherever there is no GPU: it says nothing of which one is taken."""
    return OnGpus(facts, 0).is_true(negated(test))


def needs_one_gpu(facts: Facts, node: ast.AST) -> bool:
    """Whether a line isn't reached within its function where there are several GPUs."""
    return any(is_true_anyway(facts, negated(term), 2) for term in terms(facts.source, node))


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
        return self._truth(test) is True

    def _truth(self, test: ast.expr) -> bool | None:
        try:
            return bool(self._value(test))
        except _UnknownError:
            return None

    def _value(self, node: ast.AST | None) -> Any:
        is_copied = isinstance(node, (ast.Name, ast.Attribute, ast.Call)) and self._facts.source.parent(node) is None
        if node is None or node in self._asked or is_copied:  # (What a copy names can't be told.)
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
        held = only_value(self._facts, node) or switched(self._facts, node)
        function = self._facts.source.function(node)
        if held is not None or function is None or node.id not in parameters(function):
            return self._value(held)
        calls = self._facts.callers.of(function)
        given = {self._value(self._facts.resolver.given(call, function, node.id)) for call in calls}
        if len(given) != 1 or stores_of(ast.walk(function), node.id):
            raise _UnknownError
        return given.pop()

    def _attribute(self, node: ast.Attribute) -> Any:
        stores = [n for n in self._facts.source.stores.get(node.attr, ()) if isinstance(n, ast.Attribute)]
        above = self._facts.source.parent(stores[0]) if len(stores) == 1 else None
        if isinstance(above, ast.Assign) and ast.unparse(stores[0]) == ast.unparse(node):  # args.n_gpu = device_count()
            if not all(map(self.is_true, terms(self._facts.source, above))):
                raise _UnknownError  # it may hold what was parsed
            return self._value(above.value)
        value = self._value(node.value)
        if node.attr != "type" or not isinstance(value, str):  # of a `torch.device`
            raise _UnknownError
        return value.split(":")[0]

    def _call(self, node: ast.Call) -> Any:
        path = self._facts.names.qualified(node.func) or ""
        if (
            path in DEVICE_COUNTS
            or counts_visible(self._facts.names, node)
            or (path == "builtins.len" and node.args and means_all(self._facts, node.args[0]))
        ):
            return self._count
        if path == "torch.device" and node.args:
            return self._value(node.args[0])
        if not ASKS_TORCH.fullmatch(path) or not re.search(r"\.(cuda|mps)\.", path):
            raise _UnknownError
        return ".cuda." in path and self._count > 0

    def _ifexp(self, node: ast.IfExp) -> Any:
        return self._value(node.body if self._value(node.test) else node.orelse)

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        if not isinstance(node.op, ast.Not):
            raise _UnknownError
        return not self._value(node.operand)

    def _boolop(self, node: ast.BoolOp) -> Any:
        decides = isinstance(node.op, ast.Or)
        values = [self._truth(each) for each in node.values]
        if decides not in values and None in values:
            raise _UnknownError
        return decides if decides in values else not decides

    def _compare(self, node: ast.Compare) -> Any:
        compare = _COMPARE.get(type(node.ops[0]))
        if len(node.ops) != 1 or compare is None:
            raise _UnknownError
        try:
            return compare(self._value(node.left), self._value(node.comparators[0]))
        except TypeError:
            raise _UnknownError from None


_COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
}
