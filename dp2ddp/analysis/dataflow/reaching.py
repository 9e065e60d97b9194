"""What a value is computed from: as its provenance, and also through operators, items, options and properties."""

from __future__ import annotations

import ast
from collections.abc import Collection, Hashable, Iterable, Iterator
from functools import cached_property

from dp2ddp.analysis.dataflow.provenance import Provenance
from dp2ddp.analysis.roles import is_property
from dp2ddp.source.nodes import keyword
from dp2ddp.source.program import FUNCTIONS


class ReachingDefinitions:
    """Follows values back, step by step.

    Names by their scopes, attributes by the classes of their objects, where these are known, and by name elsewhere;
    items of dictionaries by name. What is compared isn't followed: a yes or no is no longer that value.
    """

    def __init__(self, provenance: Provenance) -> None:
        self.source = provenance.source
        self.provenance = provenance

    def reached(self, nodes: Iterable[ast.expr], wanted: Collection[ast.AST]) -> set[ast.expr]:
        """What of `wanted` goes into the values of `nodes`."""
        found, seen, todo = set(), set[ast.expr](), list(nodes)
        while todo:
            node = todo.pop()
            if node in wanted:
                found.add(node)
            elif node not in seen:
                seen.add(node)
                todo += self.of(node)
        return found

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
        return [value for value in values if self._meet(node, value)]

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
            option, default = _option(node), keyword(node, "default")
            if option is not None and default is not None:
                yield ("an attribute", option), default
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


def _option(call: ast.Call) -> str | None:
    """The attribute that holds the option which `parser.add_argument(...)` adds; None for another call."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
        return None
    named = keyword(call, "dest")
    given = [a.value for a in (*call.args, named) if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if not given:
        return None
    first = given[-1] if named is not None else next((g for g in given if g.startswith("--")), given[0])
    return first.lstrip("-").replace("-", "_")
