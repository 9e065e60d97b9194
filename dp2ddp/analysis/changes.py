"""What gets another value between where the processes start and an expression further down."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Hashable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from dp2ddp.analysis.launch.placement import Launch
from dp2ddp.analysis.launch.settled import READERS
from dp2ddp.analysis.roles import Class
from dp2ddp.source.names import Own
from dp2ddp.source.nodes import closure, given_to, names_in
from dp2ddp.source.program import FUNCTIONS

if TYPE_CHECKING:
    from dp2ddp.analysis.facts import Facts

# The methods of lists, dictionaries and configurations that only read.
_READING = frozenset(
    {
        *dir(str),
        *"copy get _get_kwargs _get_args items keys values clone freeze defrost dump dumps to_dict print_help".split(),
    }
)
_WRITING = re.compile(
    "update|merge|parse|set|load|override|fill|apply|init|config|prepare|process|adjust|complete", re.IGNORECASE
)


class Changes:
    """What is written between where the processes start and lines further down; the same is asked again and again."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._held: dict[tuple[ast.Module, ast.stmt, str], Held] = {}
        self._between: dict[tuple[ast.Module, ast.stmt, ast.stmt], set[ast.AST]] = {}

    def may_be(self, launch: Launch, expression: ast.expr, place: ast.expr, stays: Callable[[ast.AST], bool]) -> bool:
        """Whether what an expression reads is written to, or may be, behind the launch and before a place.

        What only runs where there is no GPU doesn't count: one process trains there, whatever it is told.

        Args:
            stays: whether what is assigned to a target is what it holds already.
        """
        assert launch.statement is not None
        key = (launch.entry, launch.statement, ast.unparse(expression))
        held = self._held.get(key) or self._held.setdefault(key, Held(self._facts, launch, expression))
        if not held.read:
            return False
        between = self._written_before(launch, launch.statement, self._facts.source.statement(place))
        written = (node for node in between if held.is_written(node) and not stays(node))
        return any(self._facts.runs_on_gpus(launch, node) for node in written)

    def _written_before(self, launch: Launch, start: ast.stmt, later: ast.stmt) -> set[ast.AST]:
        """The calls, and what is written to, behind the launch and before a later statement."""
        before, key = self._facts.before, (launch.entry, start, later)
        if key not in self._between:
            self._between[key] = self._writing & before.nodes(replace(launch, statement=later)) - before.nodes(launch)
        return self._between[key]

    @cached_property
    def _writing(self) -> set[ast.AST]:
        with_context = (n for n in self._facts.source.nodes if hasattr(n, "ctx"))
        return {*self._facts.source.calls, *(n for n in with_context if not isinstance(n.ctx, ast.Load))}

    @cached_property
    def handed_on(self) -> dict[Hashable, list[Hashable]]:
        """To which names and attributes a name, or an attribute of whatever object, hands what it holds."""
        return _handed_on(self._facts)


class Held:
    """The objects that an expression reads at the launch, by all names that hold them."""

    def __init__(self, facts: Facts, launch: Launch, expression: ast.expr) -> None:
        self._facts = facts
        self._known: dict[ast.AST, bool] = {}
        parts = list(ast.walk(expression))
        self._attributes = {part.attr for part in parts if isinstance(part, ast.Attribute)}
        self._keys = {part.value for part in parts if isinstance(part, ast.Constant)}
        self.read = _read_at(facts, launch, names_in(expression) - _stored(expression))
        # All names and attributes that hold one.
        self._held = set(closure(self.read, lambda each: facts.changes.handed_on.get(each, ())))

    def _is_held(self, node: ast.AST) -> bool:
        return _holder(self._facts, node) in self._held

    def is_written(self, node: ast.AST) -> bool:
        """Whether a node writes what the expression reads, or may do so."""
        if node not in self._known:
            self._known[node] = self._writes(node)
        return self._known[node]

    def _writes(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call):
            return self._call_writes(node)
        if isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return False
        if isinstance(node, ast.Name):
            return binding(self._facts, node) in self.read
        if isinstance(node, ast.Attribute):
            return node.attr in self._attributes and (self._is_part(node.value) or not self._is_self(node.value))
        return isinstance(node, ast.Subscript) and self._is_part(node.value) and self._may_be_read(node.slice)

    def _is_part(self, node: ast.AST) -> bool:
        """Whether a node is one of the objects, its dictionary, or what the expression reads of it."""
        if isinstance(node, ast.Call) and self._facts.names.qualified(node.func) == "builtins.vars":
            return any(map(self._is_held, node.args))
        if isinstance(node, ast.Attribute) and node.attr in (*self._attributes, "__dict__"):
            return self._is_part(node.value)
        return self._is_held(node)

    def _is_self(self, node: ast.AST) -> bool:
        """Whether a node is the instance that a method belongs to."""
        function = self._facts.source.function(node)
        named = (
            isinstance(node, ast.Name) and function is not None and node.id in {a.arg for a in function.args.args[:1]}
        )
        return named and isinstance(self._facts.source.parent(function), ast.ClassDef)  # type: ignore[arg-type]

    def _may_be_read(self, key: ast.AST | None) -> bool:
        return not isinstance(key, ast.Constant) or key.value in self._keys | self._attributes

    def _keeps(self, func: ast.Attribute) -> bool:
        """Whether what is called is no method, but kept in one of the objects: `args.kind = Loss`."""
        stores = (node for node in self._facts.source.stores.get(func.attr, ()) if isinstance(node, ast.Attribute))
        return any(self._is_part(node.value) for node in stores)

    def _call_writes(self, call: ast.Call) -> bool:
        facts, func = self._facts, call.func
        path = facts.names.qualified(func)
        if path in ("builtins.setattr", "builtins.delattr"):
            return self._is_part(call.args[0]) and self._may_be_read(next(iter(call.args[1:]), None))
        if facts.resolver.functions_called(call) or facts.resolver.holds(func, Class):
            return False  # what these do is looked at by itself
        if isinstance(func, ast.Attribute) and self._is_part(func.value) and not self._keeps(func):
            return func.attr not in _READING
        if not any(self._is_held(value.value if isinstance(value, ast.Starred) else value) for value in given_to(call)):
            return False
        if isinstance(
            func, ast.Attribute
        ):  # by its name, as loggers and the like are given configurations all the time
            return bool(_WRITING.search(func.attr)) and not (path or "").startswith(READERS)
        return isinstance(func, ast.Name) and not (path or "").startswith(READERS) and not func.id[0].isupper()


def _read_at(facts: Facts, launch: Launch, names: Collection[str]) -> set[Hashable]:
    """What names stand for at the launch; modules and what libraries have aside."""
    assert launch.statement is not None
    function, module = facts.source.function(launch.statement), facts.source.module(launch.statement)
    local = facts.source.local_names(function) if function is not None else set()
    found: set[Hashable] = {(function, name) for name in names if name in local}
    targets = {name: facts.names.follow(module, name) for name in names if name not in local}
    for name, target in targets.items():
        is_library = isinstance(target, str) and target.split(".")[0] in ("torch", "os", "sys")
        if not is_library and (target is not None or name not in dir(__builtins__)):
            found.add(target or Own(module, name))
    return found


def _stored(node: ast.AST) -> set[str]:
    """The names that an expression binds itself, in comprehensions."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _handed_on(facts: Facts) -> dict[Hashable, list[Hashable]]:
    found: dict[Hashable, list[Hashable]] = {}
    for call in facts.source.calls:
        for called, name, value in facts.resolver.arguments(call):
            found.setdefault(_holder(facts, value), []).append((called, name))
        if isinstance(call.func, ast.Attribute):
            methods = (each.definition for each in facts.resolver.functions_called(call))
            given = [(each, each.args.args[0].arg) for each in methods if each.args.args]
            found.setdefault(_holder(facts, call.func.value), []).extend(given)
    for node in facts.source.nodes:
        if isinstance(node, ast.Assign):
            targets = (_holder(facts, target) for target in node.targets)
            found.setdefault(_holder(facts, node.value), []).extend(each for each in targets if each is not None)
    found.pop(None, None)  # of what has no name
    return found


def _holder(facts: Facts, node: ast.AST) -> Hashable:
    """What holds a value or its attributes: a name, by whose it is, or an attribute; None for another expression."""
    if isinstance(node, ast.Call) and node.args and facts.names.qualified(node.func) == "builtins.vars":
        return _holder(facts, node.args[0])
    if isinstance(node, ast.Attribute) and node.attr == "__dict__":
        return _holder(facts, node.value)
    if isinstance(node, ast.Name):
        return binding(facts, node)
    return (None, node.attr) if isinstance(node, ast.Attribute) else None


def binding(facts: Facts, name: ast.Name) -> Hashable:
    """Whose name this is: a function's, or a module's."""
    for scope in facts.source.scopes(name):
        if isinstance(scope, FUNCTIONS) and name.id in facts.source.local_names(scope):
            return scope, name.id
    return facts.names.target(name) or Own(facts.source.module(name), name.id)
