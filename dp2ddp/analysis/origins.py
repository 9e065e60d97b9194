"""Where values come from: every expression that a name or attribute can hold, so that none is overlooked.

Roles tell what is known of a name. A proof must also know that there is nothing else: a loss that is `nn.NLLLoss()` at
one call and a library's at another is no known loss.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable
from functools import cached_property

from dp2ddp.analysis.names import Own
from dp2ddp.analysis.roles import SAME_OBJECT, Instance, Module, Resolver, defaults
from dp2ddp.analysis.source import FUNCTIONS, Source


class Origins:
    """Finds what has no role among all that an expression can be."""

    def __init__(self, source: Source, resolver: Resolver) -> None:
        self.source = source
        self.resolver = resolver

    def stranger(self, node: ast.expr) -> ast.expr | None:
        """An expression whose value `node` can have and that has no role; None where there is none."""
        return self._stranger(node, set())

    def _stranger(self, node: ast.expr, seen: set[Hashable]) -> ast.expr | None:
        if isinstance(node, ast.Constant):
            return None
        parts = _parts(node)
        if parts is not None:
            return self._first(parts, seen)
        if isinstance(node, ast.Call):
            return self._of_call(node, seen)
        if not self.resolver.roles(node):
            return node
        for key in self._keys(node):
            if key not in seen:
                seen.add(key)
                found = self._first(self._values.get(key, []), seen)
                if found is not None:
                    return found
        return None

    def _first(self, nodes: list[ast.expr], seen: set[Hashable]) -> ast.expr | None:
        return next((found for node in nodes if (found := self._stranger(node, seen)) is not None), None)

    def _of_call(self, node: ast.Call, seen: set[Hashable]) -> ast.expr | None:
        if not self.resolver.roles(node):
            return node
        if isinstance(node.func, ast.Attribute) and node.func.attr in SAME_OBJECT:
            return self._stranger(node.func.value, seen)
        for function in self.resolver.functions_called(node):
            if function.definition not in seen and function.definition.name != "__init__":
                seen.add(function.definition)
                found = self._first(self._values.get(function.definition, []), seen)
                if found is not None:
                    return found
        return None

    def _keys(self, node: ast.expr) -> list[Hashable]:
        if isinstance(node, ast.Name):
            variable = self.resolver.bindings.variable(node)
            target = self.resolver.names.target(node)
            imported = [(target.module, target.name)] if isinstance(target, Own) else []
            return [*([variable] if variable is not None else []), *imported]
        if isinstance(node, ast.Attribute):
            owners = (r.definition for r in self.resolver.roles(node.value) if isinstance(r, (Instance, Module)))
            return [
                (owner, node.attr) for one in owners if one is not None for owner in self.resolver.classes.lineage(one)
            ]
        return []

    @cached_property
    def _values(self) -> dict[Hashable, list[ast.expr]]:
        """What each variable, attribute and function result can be."""
        self._found: dict[Hashable, list[ast.expr]] = {}
        for node in self.source.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._enter(target, node.value)
            elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                self._enter(node.target, node.value)
            elif isinstance(node, ast.Return) and node.value is not None:
                self._found.setdefault(self.source.function(node), []).append(node.value)
            elif isinstance(node, ast.Call):
                for function, name, value in self.resolver.arguments(node):
                    self._found.setdefault((function, name), []).append(value)
            elif isinstance(node, FUNCTIONS):
                for name, value in defaults(node.args):
                    self._found.setdefault((node, name), []).append(value)
        return self._found

    def _enter(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            pairs = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
            for index, one in enumerate(target.elts):
                self._enter(one, value.elts[index] if pairs else value)  # type: ignore[attr-defined]
            return
        for key in self._keys(target):
            self._found.setdefault(key, []).append(value)


def _parts(node: ast.expr) -> list[ast.expr] | None:
    """The expressions whose values an expression has or holds, None for one that has a value of its own."""
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, (ast.BoolOp, ast.Dict)):
        return node.values
    if isinstance(node, (ast.List, ast.Tuple)):
        return node.elts
    if isinstance(node, ast.DictComp):
        return [node.value]
    return [node.value] if isinstance(node, (ast.Subscript, ast.Starred, ast.NamedExpr)) else None
