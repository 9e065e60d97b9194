"""Where values go: through names, attributes, items, parameters and returns, from where they come from."""

from __future__ import annotations

import ast
from collections.abc import Collection

from dp2ddp.analysis.roles import Resolver, is_property
from dp2ddp.source.program import FunctionNode, Source, keyword


class Flow:
    """From which of `origins` each value may come, as far as `nodes` hand them on.

    By names and scopes; attributes and the items of dictionaries by their names alone. A value that is computed from
    several comes from all of them.
    """

    def __init__(
        self, source: Source, resolver: Resolver, origins: Collection[ast.expr], nodes: Collection[ast.AST]
    ) -> None:
        self.source = source
        self.resolver = resolver
        self.origins = origins
        self.held: dict[tuple[object, str], frozenset[ast.expr]] = {}
        self.returned: dict[FunctionNode, frozenset[ast.expr]] = {}
        self._changed = True
        while self._changed:
            self._changed = False
            for node in nodes:
                self._hand_on(node)

    def is_held(self, node: ast.AST) -> bool:
        """Whether `node` reads a name, an attribute or an item that holds one of the values."""
        return isinstance(getattr(node, "ctx", None), ast.Load) and bool(self._read(node))

    def of(self, node: ast.AST) -> frozenset[ast.expr]:
        """The origins of an expression's value."""
        if isinstance(node, ast.expr) and node in self.origins:
            return frozenset({node})
        found = self._read(node)
        if isinstance(node, ast.Call):
            functions = self.resolver.functions_called(node)
            if functions:
                return found.union(*(self.returned.get(f.definition, frozenset()) for f in functions))
        if isinstance(node, (ast.Compare, ast.Lambda)) or (found and isinstance(node, ast.Subscript)):
            return found
        return found.union(*map(self.of, ast.iter_child_nodes(node)))

    def _read(self, node: ast.AST) -> frozenset[ast.expr]:
        if isinstance(node, ast.Name):
            scope: ast.AST = self.source.scope(node)
            while (scope, node.id) not in self.held and not isinstance(scope, ast.Module):
                scope = self.source.scope(scope)
            return self.held.get((scope, node.id), frozenset())
        key = _key(node)
        return frozenset() if key is None else self.held.get(key, frozenset())

    def _hand_on(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._hold(target, node.value)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
            self._hold(node.target, node.value)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._hold(node.optional_vars, node.context_expr)
        elif isinstance(node, ast.Return) and node.value is not None:
            function = self.source.function(node)
            if function is not None:
                self.returned[function] = self._joined(self.returned.get(function, frozenset()), self.of(node.value))
                if is_property(function):
                    self._keep(("an attribute", function.name), node.value)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values):
                if isinstance(key, ast.Constant):
                    self._keep(("an item", str(key.value)), value)
        elif isinstance(node, ast.Call):
            self._pass(node)

    def _hold(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            scope = self.source.scope(target)
            self._keep((scope, target.id), value)
            if isinstance(scope, ast.ClassDef):
                self._keep(("an attribute", target.id), value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            pairs = zip(target.elts, values) if len(values) == len(target.elts) else ((t, value) for t in target.elts)
            for one, its_value in pairs:
                self._hold(one, its_value)
        else:
            key = _key(target)
            if key is not None:
                self._keep(key, value)

    def _pass(self, call: ast.Call) -> None:
        """Hand arguments to the script's own functions, and defaults of options to the attributes that they become."""
        for function in self.resolver.functions_called(call):
            arguments = function.definition.args
            names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
            if function.owner is not None and names[:1] in (["self"], ["cls"]):
                names = names[1:]
            for name, value in zip(names, call.args):
                self._keep((function.definition, name), value)
            for given in call.keywords:
                if given.arg is not None:
                    self._keep((function.definition, given.arg), given.value)
        option = _option(call)
        default = keyword(call, "default")
        if option is not None and default is not None:
            self._keep(("an attribute", option), default)

    def _keep(self, key: tuple[object, str], value: ast.expr) -> None:
        self.held[key] = self._joined(self.held.get(key, frozenset()), self.of(value))

    def _joined(self, old: frozenset[ast.expr], new: frozenset[ast.expr]) -> frozenset[ast.expr]:
        if new <= old:
            return old
        self._changed = True
        return old | new


def _key(node: ast.AST) -> tuple[object, str] | None:
    """Under what name an attribute, or an item of a dictionary, is followed."""
    if isinstance(node, ast.Attribute):
        return "an attribute", node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return "an item", node.slice.value
    return None


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
