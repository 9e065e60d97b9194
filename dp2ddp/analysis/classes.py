"""The program's own classes and functions: which one an expression names, and what a class derives from."""

from __future__ import annotations

import ast
from collections.abc import Collection
from functools import cached_property
from typing import Union

from dp2ddp.source.names import Names, Own
from dp2ddp.source.nodes import closure, last_name
from dp2ddp.source.program import FUNCTIONS, FunctionNode, ParsedProgram

Definition = Union[ast.ClassDef, FunctionNode]


class Classes:
    """Looks names up where they are defined, as Python does; what assignments move about is not followed."""

    def __init__(self, source: ParsedProgram, names: Names) -> None:
        self._source = source
        self._names = names

    @cached_property
    def _defined(self) -> dict[tuple[ast.AST, str], Definition]:
        """Classes and functions by their scope and name; of several by one name, the last one."""
        found = (node for node in self._source.nodes if isinstance(node, (ast.ClassDef, *FUNCTIONS)))
        return {(self._source.scope(node), node.name): node for node in found}

    def definition(self, node: ast.AST | None) -> Definition | None:
        """The class or function of the program that an expression names; of `self.x` the method."""
        target = None if node is None else self._names.target(node)
        if isinstance(target, Own):
            return self._defined.get((target.module, target.name))
        if isinstance(node, ast.Name) and target is None:
            scopes = [each for each in self._source.scopes(node) if not isinstance(each, ast.ClassDef)]
            return next((self._defined[scope, node.id] for scope in scopes if (scope, node.id) in self._defined), None)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            # From the function on, as the bases of a class in it may name `self.x`.
            around = self._source.ancestors(self._source.function(node) or node)
            owner = next((each for each in around if isinstance(each, ast.ClassDef)), None)
            places = [] if owner is None else self.lineage(owner)
            return next((self._defined[at, node.attr] for at in places if (at, node.attr) in self._defined), None)
        return None

    def lineage(self, definition: ast.ClassDef) -> list[ast.ClassDef]:
        """A class, and those of the program that it derives from, directly or not."""
        return list(closure([definition], self._bases))

    def _bases(self, definition: ast.ClassDef) -> list[ast.ClassDef]:
        bases = (self.definition(base) for base in definition.bases)
        return [base for base in bases if isinstance(base, ast.ClassDef)]

    def derives(self, definition: Definition | None, paths: Collection[str]) -> bool:
        """Whether it is a class that derives from one of these of other packages."""
        if not isinstance(definition, ast.ClassDef):
            return False
        return any(self._names.qualified(base) in paths for each in self.lineage(definition) for base in each.bases)

    def derived(self, definition: ast.ClassDef) -> list[ast.ClassDef]:
        """The classes of the program that derive from a class, itself not included."""
        others = (each for each in self._defined.values() if isinstance(each, ast.ClassDef) and each is not definition)
        return [each for each in others if definition in self.lineage(each)]

    def method(self, definition: ast.ClassDef, name: str) -> FunctionNode | None:
        """A method of the class itself."""
        found = self._defined.get((definition, name))
        return found if isinstance(found, FUNCTIONS) else None

    def with_own(self, definition: ast.ClassDef, name: str) -> list[FunctionNode]:
        """A method of the class itself, and those that it calls by `self`, and so on."""
        names, found = [name], dict[str, FunctionNode]()
        while names:
            method = self.method(definition, name := names.pop())
            if method is not None and name not in found:
                found[name] = method
                calls = (n.func for n in ast.walk(method) if isinstance(n, ast.Call))
                names += [each.attr for each in calls if isinstance(each, ast.Attribute) and _is_self(each.value)]
        return [*found.values()]

    def uses(self, definition: Definition) -> list[ast.expr]:
        """Where the program names a class or function, outside of itself and of what asks for a type."""
        inside = set(ast.walk(definition))
        named = (n for n in self._source.nodes if isinstance(n, (ast.Name, ast.Attribute)) and n not in inside)
        loads = (n for n in named if isinstance(n.ctx, ast.Load) and last_name(n) == definition.name)
        found = [n for n in loads if self.definition(n) is definition]
        return [n for n in found if not asks_for_type(self._source, self._names, n)]


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def asks_for_type(source: ParsedProgram, names: Names, reference: ast.expr) -> bool:
    """Whether a class is named to check a type (in `isinstance(...)`, beside `type(...)`) or to annotate one."""
    node: ast.AST = reference
    for above in source.ancestors(reference):
        if isinstance(above, ast.Call):
            return names.qualified(above.func) in ("builtins.isinstance", "builtins.issubclass")
        if isinstance(above, (ast.Compare, ast.arg)):
            return True
        if isinstance(above, ast.AnnAssign):
            return node is above.annotation
        if isinstance(above, FUNCTIONS):
            return node is above.returns
        if isinstance(above, ast.stmt):
            return False
        node = above
    return False
