"""Where a value comes from: followed back through names, attributes, parameters and returns, only as far as asked."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property

from dp2ddp.analysis.roles import Instance, Module, Resolver, defaults
from dp2ddp.source.names import Names, Own
from dp2ddp.source.nodes import keyword
from dp2ddp.source.program import FUNCTIONS, ParsedProgram


class Provenance:
    """Finds the expressions that an expression's value can be."""

    def __init__(self, source: ParsedProgram, names: Names, resolver: Resolver) -> None:
        self.source = source
        self.names = names
        self.resolver = resolver
        self._found: dict[ast.expr, frozenset[ast.expr]] = {}
        self._named_found: dict[tuple[Hashable, ...], frozenset[ast.expr]] = {}

    def of(self, node: ast.expr) -> frozenset[ast.expr]:
        """What `node` can be: expressions that are no names of others. A name of which nothing is known is itself."""
        if node not in self._found:
            self._found[node] = self._of_key(node) or frozenset(self._follow(node, set()))
        return self._found[node]

    def _of_key(self, node: ast.expr) -> frozenset[ast.expr] | None:
        """What a name can be of which all is known: one set for all its uses, as those can be thousands."""
        keys = tuple(self.keys(node))
        if not keys or any(key in self.bound[1] for key in keys):
            return None
        if keys not in self._named_found:
            self._named_found[keys] = frozenset(self._values_of(keys, set()))
        return self._named_found[keys]

    def elements_of(self, name: ast.expr) -> list[ast.expr]:
        """What `name` is an element of, where a loop binds it."""
        return [each for key in self.keys(name) for each in self.bound[1].get(key, ())]

    def _follow(self, node: ast.expr, seen: set[Hashable]) -> set[ast.expr]:
        inner: list[ast.expr] | None = None
        if isinstance(node, ast.IfExp):
            inner = [node.body, node.orelse]
        elif isinstance(node, ast.BoolOp):
            inner = node.values
        elif isinstance(node, ast.NamedExpr):
            inner = [node.value]
        elif isinstance(node, (ast.Name, ast.Attribute)):
            return self._of_name(node, seen)
        elif isinstance(node, ast.Call):
            called = self.resolver.functions_called(node)
            inner = [v for f in called if f.definition.name != "__init__" for v in self._new(f.definition, seen)]
        return set().union(*(self._follow(each, seen) for each in inner)) if inner else {node}

    def _of_name(self, node: ast.Name | ast.Attribute, seen: set[Hashable]) -> set[ast.expr]:
        keys = self.keys(node)
        found = self._values_of(keys, seen)
        known = found or any(key in seen for key in keys)
        return found if known and not any(key in self.bound[1] for key in keys) else found | {node}

    def _values_of(self, keys: Sequence[Hashable], seen: set[Hashable]) -> set[ast.expr]:
        return {end for key in keys for value in self._new(key, seen) for end in self._follow(value, seen)}

    def _new(self, key: Hashable, seen: set[Hashable]) -> list[ast.expr]:
        """The values of a key that was not followed yet."""
        if key in seen or key not in self.bound[0]:
            return []
        seen.add(key)
        return self.bound[0][key]

    def keys(self, node: ast.expr) -> list[Hashable]:
        """Under what a name or an attribute is bound. Attributes of what isn't known go by their names."""
        if isinstance(node, ast.Name):
            target = self.names.target(node)
            if isinstance(target, Own):
                return [(target.module, target.name)]
            return [(self.scope(node.id, node), node.id)]
        if isinstance(node, ast.Attribute):
            roles = self.resolver.roles(node.value)
            owners = [r.definition for r in roles if isinstance(r, (Instance, Module)) and r.definition is not None]
            lineages = [one for owner in owners for one in self.resolver.classes.lineage(owner)]
            return [(owner, node.attr) for owner in lineages] if lineages else [("an attribute", node.attr)]
        return []

    def scope(self, name: str, node: ast.AST) -> ast.AST:
        """Where a name is bound that is used where `node` stands."""
        scope: ast.AST = self.source.scope(node)
        while (scope, name) not in self._named and not isinstance(scope, ast.Module):
            scope = self.source.scope(scope)
        return scope

    @cached_property
    def _named(self) -> set[tuple[ast.AST, str]]:
        """The names that are bound in each scope."""
        stored = (n for n in self.source.nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        found = {(self.source.scope(n), n.id) for n in stored}
        arguments = (n for n in self.source.nodes if isinstance(n, ast.arg))
        return {*found, *((self.source.scope(n), n.arg) for n in arguments)}

    @cached_property
    def bound(self) -> tuple[dict[Hashable, list[ast.expr]], dict[Hashable, list[ast.expr]]]:
        """What each name, attribute and return can be; and what each is an element of."""
        values: dict[Hashable, list[ast.expr]] = {}
        elements: dict[Hashable, list[ast.expr]] = {}
        for node in self.source.nodes:
            if isinstance(node, (ast.For, ast.comprehension)):
                self._bind(node.target, node.iter, elements)
            elif isinstance(node, ast.AugAssign):  # it is something else then
                self._bind(node.target, node.value, elements)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, node.value, values)
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                self._bind(node.optional_vars, node.context_expr, values)
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                self._bind(node.target, node.value, values)
            else:
                if isinstance(node, ast.Call) and option(node) is not None:
                    elements.setdefault(("an attribute", option(node)), [])  # what is parsed isn't known
                for key, value in self._handed_over(node):
                    values.setdefault(key, []).append(value)
        return values, elements

    def _handed_over(self, node: ast.AST) -> Iterator[tuple[Hashable, ast.expr]]:
        """What a node gives to parameters, or back to callers."""
        if isinstance(node, ast.Return) and node.value is not None:
            yield self.source.function(node), node.value
        elif isinstance(node, ast.Call):
            yield from (((function, name), value) for function, name, value in self.resolver.arguments(node))
        elif isinstance(node, FUNCTIONS):
            yield from (((node, name), value) for name, value in defaults(node.args))

    def _bind(self, target: ast.expr, value: ast.expr, into: dict[Hashable, list[ast.expr]]) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            pairs = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
            for index, one in enumerate(target.elts):
                self._bind(one, value.elts[index] if pairs else value, into)  # type: ignore[attr-defined]
            return
        for key in self.keys(target):
            into.setdefault(key, []).append(value)


def option(call: ast.Call) -> str | None:
    """The attribute that holds the option which `parser.add_argument(...)` adds; None for another call."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
        return None
    named = keyword(call, "dest")
    given = [a.value for a in (*call.args, named) if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if not given:
        return None
    first = given[-1] if named is not None else next((g for g in given if g.startswith("--")), given[0])
    return first.lstrip("-").replace("-", "_")
