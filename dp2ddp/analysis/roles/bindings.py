"""What names, attributes and returns hold, as far as is known so far."""

from __future__ import annotations

import ast

from dp2ddp.analysis.roles.kinds import NONE, Role, merge
from dp2ddp.source.program import FunctionNode, ParsedProgram


class Bindings:
    """The roles of all that a script binds. They only grow; `changes` counts how often they did."""

    def __init__(self, source: ParsedProgram) -> None:
        self.changes = 0
        self._source = source
        self._variables: dict[tuple[ast.AST, str], frozenset[Role]] = {}
        self._attributes: dict[tuple[ast.ClassDef, str], frozenset[Role]] = {}
        self._returns: dict[FunctionNode, frozenset[Role]] = {}
        self._stored: dict[str, frozenset[Role]] = {}
        self.defaults: frozenset[Role] = NONE  # of what is parsed: `parser.set_defaults(func=fit)`
        self._globals = self._declared_globals()

    def _declared_globals(self) -> dict[ast.AST, set[str]]:
        declared: dict[ast.AST, set[str]] = {}
        for node in self._source.nodes:
            if isinstance(node, ast.Global):
                declared.setdefault(self._source.scope(node), set()).update(node.names)
        return declared

    def bind_variable(self, node: ast.AST, name: str, roles: frozenset[Role]) -> None:
        """`name`, where `node` stands, holds `roles` too."""
        scope: ast.AST = self._source.scope(node)
        if name in self._globals.get(scope, ()):
            scope = self._source.module(node)
        self._bind_name(scope, name, roles)

    def bind_parameter(self, function: FunctionNode, name: str, roles: frozenset[Role]) -> None:
        """A function's parameter holds `roles` too."""
        self._bind_name(function, name, roles)

    def _bind_name(self, scope: ast.AST, name: str, roles: frozenset[Role]) -> None:
        self.changes += (scope, name) not in self._variables  # it hides what the scopes around have by this name
        self._variables[scope, name] = self._joined(self.named(scope, name), roles)

    def bind_attribute(self, definition: ast.ClassDef, name: str, roles: frozenset[Role]) -> None:
        """An attribute of a class's objects holds `roles` too."""
        self._attributes[definition, name] = self._joined(self.attribute(definition, name), roles)

    def bind_stored(self, name: str, roles: frozenset[Role]) -> None:
        """An attribute of objects that nobody knows, such as an `EasyDict`, holds `roles` too."""
        self._stored[name] = self._joined(self.stored(name), roles)

    def bind_return(self, function: FunctionNode, roles: frozenset[Role]) -> None:
        """A function returns `roles` too."""
        self._returns[function] = self._joined(self.returned(function), roles)

    def bind_defaults(self, roles: frozenset[Role]) -> None:
        """What is parsed holds `roles` too."""
        self.defaults = self._joined(self.defaults, roles)

    def named(self, scope: ast.AST, name: str) -> frozenset[Role]:
        """What a name holds that is bound in a scope."""
        return self._variables.get((scope, name), NONE)

    def attribute(self, definition: ast.ClassDef, name: str) -> frozenset[Role]:
        """What an attribute holds that a class sets on its objects."""
        return self._attributes.get((definition, name), NONE)

    def stored(self, name: str) -> frozenset[Role]:
        """What an attribute holds of objects that nobody knows."""
        return self._stored.get(name, NONE)

    def returned(self, function: FunctionNode) -> frozenset[Role]:
        """What a function returns."""
        return self._returns.get(function, NONE)

    def variable(self, node: ast.Name) -> tuple[ast.AST, str] | None:
        """The scope in which a name is known, and the name; None for one that no role was ever seen of."""
        scope: ast.AST | None = self._source.scope(node)
        first = True
        while scope is not None:
            # A class body's names are not seen from its methods.
            if (first or not isinstance(scope, ast.ClassDef)) and (scope, node.id) in self._variables:
                return scope, node.id
            first = False
            scope = None if isinstance(scope, ast.Module) else self._source.scope(scope)
        return None

    def _joined(self, old: frozenset[Role], new: frozenset[Role]) -> frozenset[Role]:
        if new <= old:
            return old
        joined = merge(old | new)
        self.changes += joined != old
        return joined
