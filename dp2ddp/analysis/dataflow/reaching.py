"""What a value is computed from: as its provenance, and also through operators, items, options and properties."""

from __future__ import annotations

import ast
from collections.abc import Collection, Hashable, Iterable, Iterator
from functools import cached_property
from typing import Optional

from dp2ddp.analysis.dataflow.provenance import Provenance, option
from dp2ddp.analysis.roles import Class, is_property
from dp2ddp.source.nodes import closure, given_to, keyword, last_name
from dp2ddp.source.program import FUNCTIONS

#: The calls that make an object, or by what name it is imported; None where that isn't known.
Objects = Optional[frozenset[Hashable]]
_TO_PLAIN = frozenset(f"builtins.{name}" for name in "len int float str bool sum min max abs round range".split())
_NO_OBJECTS = (ast.Constant, ast.JoinedStr, ast.BinOp, ast.Compare, ast.UnaryOp)


class ReachingDefinitions:
    """Follows values back, step by step.

    Names by their scopes, attributes by the classes of their objects, where these are known, and by name elsewhere;
    items of dictionaries by name. Of two objects that are known to be made by different calls one doesn't have what the
    other is given: the time in one meter is not in the next. What is compared isn't followed: a yes or no is no longer
    that value.
    """

    def __init__(self, provenance: Provenance) -> None:
        self.source = provenance.source
        self.provenance = provenance
        self._made: dict[ast.expr, Objects] = {}

    def reached(self, nodes: Iterable[ast.expr], wanted: Collection[ast.AST]) -> set[ast.expr]:
        """What of `wanted` goes into the values of `nodes`."""
        start: list[tuple[ast.expr, Objects]] = [(node, None) for node in nodes]
        found = closure(start, lambda at: () if at[0] in wanted else self._steps(*at))
        return {node for node, _ in found if node in wanted}

    def _steps(self, node: ast.expr, owner: Objects) -> Iterator[tuple[ast.expr, Objects]]:
        """The expressions that a value is computed from, each with what `self` is where it stands.

        Args:
            owner: what `self` is where `node` stands.
        """
        receiver = node.func if isinstance(node, ast.Call) else node
        inside = self._objects(receiver.value, owner) if isinstance(receiver, ast.Attribute) else None
        for each in self.of(node):
            if self.source.function(each) is self.source.function(node):
                yield each, owner
            elif not isinstance(node, ast.Name) or owner is None:
                yield each, inside
            elif self._may_be_of(each, owner):  # what a parameter of a method is given
                called_on = self._receiver(each)
                yield each, owner if self._is_self(called_on) or _is_super(called_on) else None

    def _receiver(self, given: ast.expr) -> ast.expr | None:
        """The object of whose method an expression is an argument."""
        above = self.source.parent(given)
        call = self.source.parent(above) if isinstance(above, ast.keyword) else above
        return call.func.value if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None

    def _may_be_of(self, given: ast.expr, owner: frozenset[Hashable]) -> bool:
        """Whether an argument may be given to a method of one of these objects."""
        receiver = self._receiver(given)
        is_own = receiver is None or self._is_self(receiver) or _is_super(receiver)
        objects = None if is_own else self._objects(receiver, None)  # type: ignore[arg-type]
        return objects is None or not objects.isdisjoint(owner)

    def _is_self(self, node: ast.expr | None) -> bool:
        function = None if node is None else self.source.function(node)
        if function is None or not isinstance(self.source.parent(function), ast.ClassDef):
            return False
        first = next(iter(function.args.args), None)
        return first is not None and isinstance(node, ast.Name) and node.id == first.arg

    def _objects(self, node: ast.expr, owner: Objects) -> Objects:
        """The calls that make what an expression can be, and what goes into these; None where that isn't known."""
        if self._is_self(node):
            return owner
        if node not in self._made:
            self._made[node] = None  # for where it leads to itself
            self._made[node] = self._find_objects(node)
        return self._made[node]

    def _find_objects(self, node: ast.expr) -> Objects:
        qualified = self.provenance.names.qualified
        found: set[Hashable] = set()
        todo = [node]
        while todo:
            for made in self.provenance.of(todo.pop()):
                if isinstance(made, _NO_OBJECTS) or made in found:
                    continue
                if isinstance(made, ast.Call):
                    if qualified(made.func) in _TO_PLAIN:
                        continue
                    if not self._makes_object(made):
                        return None
                    found.add(made)
                    todo += given_to(made)  # of which it may be a copy
                    continue
                path = qualified(made)
                if path is None:
                    return None
                found.add(path)
        return frozenset(found)

    def _makes_object(self, call: ast.Call) -> bool:
        """Whether a call makes an object, and gives back none that others have."""
        classes = [role.definition for role in self.provenance.resolver.roles(call.func) if isinstance(role, Class)]
        if classes:
            return not any(map(self._shares, classes))
        path, method = self.provenance.names.qualified(call.func), last_name(call.func)
        return method.startswith("parse_") if path is None else path.rpartition(".")[2][:1].isupper()

    def _shares(self, definition: ast.ClassDef) -> bool:
        """Whether a class may give the same object twice, or its objects the same attributes."""
        family = self.provenance.resolver.classes.lineage(definition)
        return any(each.keywords or any(_is_told_to_share(node) for node in ast.walk(each)) for each in family)

    @cached_property
    def _mixes(self) -> bool:
        """Whether attributes are set by names that are computed, or all at once: anything may be in any object."""
        for call in self.source.calls:
            whole = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
            at_once = last_name(call.func) == "update" and ("__dict__" in whole or whole.startswith("vars("))
            is_set = self.provenance.names.qualified(call.func) == "builtins.setattr"
            if at_once or (is_set and not isinstance(next(iter(call.args[1:]), None), ast.Constant)):
                return True
        return False

    def of(self, node: ast.expr) -> Iterator[ast.expr]:
        """The expressions that a value is computed from, one step back."""
        if isinstance(node, ast.Call):
            yield from self._of_call(node)
            return
        held = self.held(node)
        yield from held
        if not (isinstance(node, (ast.Compare, ast.Lambda)) or (held and isinstance(node, ast.Subscript))):
            for child in ast.iter_child_nodes(node):
                yield from _expressions(child)

    def _of_call(self, call: ast.Call) -> Iterator[ast.expr]:
        """What the script's own function gives back; of any other one what it is given, and its object."""
        yield from self.given_back(call)
        if not self.provenance.resolver.functions_called(call):
            # (A method is no attribute that holds something: `x.sum()` is not a meter's `sum`.)
            if isinstance(call.func, ast.Attribute):
                yield call.func.value
            yield from call.args
            yield from (given.value for given in call.keywords)

    def given_back(self, call: ast.Call) -> list[ast.expr]:
        """What the script's own functions that a call may call return."""
        called = self.provenance.resolver.functions_called(call)
        return [value for function in called for value in self._held.get(function.definition, ())]

    def held(self, node: ast.expr) -> list[ast.expr]:
        """What a name, an attribute or an item holds: what another script puts there, it doesn't."""
        values = (value for key in self._keys(node) for value in self._held.get(key, ()))
        return [value for value in values if self._meet(node, value) and self._may_hold(node, value)]

    def _may_hold(self, node: ast.expr, value: ast.expr) -> bool:
        """Whether the object of an attribute may be one in whose attribute a value is put."""
        statement = self.source.parent(value)
        if not isinstance(node, ast.Attribute) or not isinstance(statement, ast.Assign):
            return True
        if self._mixes:
            return True
        into = [each.value for each in statement.targets if isinstance(each, ast.Attribute) and each.attr == node.attr]
        own, others = self._objects(node.value, None), [self._objects(each, None) for each in into]
        return not into or own is None or any(each is None or not own.isdisjoint(each) for each in others)

    def _meet(self, node: ast.expr, other: ast.expr) -> bool:
        """Whether one script, of those that are converted together, can run both."""
        modules = self.source.module(node), self.source.module(other)
        return modules[0] is modules[1] or not self._scripts[modules[0]].isdisjoint(self._scripts[modules[1]])

    @cached_property
    def _scripts(self) -> dict[ast.Module, set[ast.Module]]:
        """The scripts that import each module."""
        names = self.provenance.names
        found: dict[ast.Module, set[ast.Module]] = {file.tree: set() for file in self.source.files}
        for entry in self.source.entry_trees:
            for module in names.reachable(entry):
                found[module].add(entry)
        return found

    def _keys(self, node: ast.expr) -> list[Hashable]:
        if isinstance(node, ast.Subscript):
            index = node.slice.value if isinstance(node.slice, ast.Constant) else None
            return [("an item", index)] if isinstance(index, str) else []
        keys = self.provenance.keys(node)
        if not isinstance(node, ast.Attribute):
            return keys
        unknown: Hashable = ("an attribute", node.attr)
        return self._attributes.get(node.attr, keys) if unknown in keys else [*keys, unknown]

    @cached_property
    def _attributes(self) -> dict[str, list[Hashable]]:
        """The keys of all attributes of a name, whosever they are."""
        found: dict[str, list[Hashable]] = {}
        for key in self._held:
            if isinstance(key, tuple) and (key[0] == "an attribute" or isinstance(key[0], ast.ClassDef)):
                found.setdefault(key[1], []).append(key)
        return found

    @cached_property
    def _held(self) -> dict[Hashable, list[ast.expr]]:
        """What each name, attribute, item and return can be computed from."""
        found: dict[Hashable, list[ast.expr]] = {}
        for bound in self.provenance.bound:
            for key, values in bound.items():
                found.setdefault(key, []).extend(values)
        for node in self.source.nodes:
            for key, value in self._handed_over(node):
                found.setdefault(key, []).append(value)
        return found

    def _handed_over(self, node: ast.AST) -> Iterator[tuple[Hashable, ast.expr]]:
        """What a node puts into items, options and properties."""
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values)
            yield from ((("an item", key.value), value) for key, value in pairs if isinstance(key, ast.Constant))
        elif isinstance(node, ast.Assign):
            items = (target for target in node.targets if isinstance(target, ast.Subscript))
            yield from ((key, node.value) for target in items for key in self._keys(target))
        elif isinstance(node, ast.Call):
            name, default = option(node), keyword(node, "default")
            if name is not None and default is not None:
                yield ("an attribute", name), default
        elif isinstance(node, ast.Return) and node.value is not None:
            function = self.source.function(node)
            if function is not None and is_property(function):
                yield (self.source.parent(function), function.name), node.value


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """A node, if it is an expression; else those in it: of keyword arguments, parts of f-strings, comprehensions."""
    if isinstance(node, ast.expr):
        yield node
    elif not isinstance(node, FUNCTIONS):
        for child in ast.iter_child_nodes(node):
            yield from _expressions(child)


def _is_super(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _is_told_to_share(node: ast.AST) -> bool:
    """Whether a class makes its objects itself (`__new__`), or they have their attributes from elsewhere."""
    return (isinstance(node, FUNCTIONS) and node.name == "__new__") or (
        isinstance(node, ast.Attribute) and node.attr == "__dict__"
    )
