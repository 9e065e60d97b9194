"""The script's classes: what they derive from, and the methods that their objects have."""

from __future__ import annotations

import ast
from typing import Callable

from dp2ddp.analysis.roles.kinds import Class, Function, Instance, Module, Role
from dp2ddp.source.names import Names
from dp2ddp.source.program import FUNCTIONS, FunctionNode, ParsedProgram

#: Where classes of modules are, to derive from.
_MODULES = ("torch.nn.", "torchvision.models.", "timm.models.")


class Classes:
    """The classes of a script.

    Args:
        roles: gives an expression's roles, as far as they are known.
    """

    def __init__(self, source: ParsedProgram, names: Names, roles: Callable[[ast.AST], frozenset[Role]]) -> None:
        self._source = source
        self._names = names
        self._roles = roles
        self._modules: dict[ast.ClassDef, bool] = {}
        self._lineages: dict[ast.ClassDef, list[ast.ClassDef]] = {}
        self._methods: dict[ast.ClassDef, dict[str, FunctionNode]] = {}
        self._subclasses: dict[ast.ClassDef, list[ast.ClassDef]] | None = None

    def libraries(self, definition: ast.ClassDef) -> list[str]:
        """The classes of libraries that a class of this script derives from, directly or not."""
        paths = [self._names.qualified(base) for owner in self.lineage(definition) for base in owner.bases]
        return [path for path in paths if path is not None]

    def is_module(self, definition: ast.ClassDef) -> bool:
        """Whether a class of this script derives from `torch.nn.Module`."""
        if definition not in self._modules:
            self._modules[definition] = any(path.startswith(_MODULES) for path in self.libraries(definition))
        return self._modules[definition]

    def is_wrapper(self, definition: ast.ClassDef) -> bool:
        """Whether a class of this script derives from `nn.DataParallel`."""
        return "torch.nn.DataParallel" in self.libraries(definition)

    def object_of(self, definition: ast.ClassDef) -> Role:
        """What calling a class makes."""
        return Module(definition) if self.is_module(definition) else Instance(definition)

    def bases(self, definition: ast.ClassDef) -> list[ast.ClassDef]:
        """The bases of a class that this script defines."""
        roles = [role for base in definition.bases for role in self._roles(base)]
        return [role.definition for role in roles if isinstance(role, Class) and role.definition is not definition]

    def lineage(self, definition: ast.ClassDef) -> list[ast.ClassDef]:
        """A class and its bases that this script defines, nearest first."""
        if definition not in self._lineages:
            self._lineages[definition] = self._find_lineage(definition)
        return self._lineages[definition]

    def _find_lineage(self, definition: ast.ClassDef) -> list[ast.ClassDef]:
        lineage = [definition]
        for owner in lineage:
            lineage.extend(base for base in dict.fromkeys(self.bases(owner)) if base not in lineage)
        return lineage

    def derived(self, definition: ast.ClassDef) -> list[ast.ClassDef]:
        """The classes of this program that derive from a class."""
        if self._subclasses is None:
            self._subclasses = {}
            for one in (n for n in self._source.nodes if isinstance(n, ast.ClassDef) and n.bases):
                for base in self.lineage(one)[1:]:
                    self._subclasses.setdefault(base, []).append(one)
        return self._subclasses.get(definition, [])

    def methods(self, definition: ast.ClassDef, name: str) -> list[Function]:
        """The method of that name that an object of the class has: one, or none."""
        for owner in self.lineage(definition):
            if owner not in self._methods:
                self._methods[owner] = {item.name: item for item in reversed(owner.body) if isinstance(item, FUNCTIONS)}
            if name in self._methods[owner]:
                return [Function(self._methods[owner][name], definition)]
        return []

    def methods_of_class(self, definition: ast.ClassDef, name: str) -> list[Function]:
        """The method that `Base.method` names: it takes the object as an argument, unless it is the class's own."""
        found = self.methods(definition, name)
        return [one if is_of_class(one.definition) else Function(one.definition) for one in found]


def is_of_class(function: FunctionNode) -> bool:
    """Whether a method takes the class in the place of an object."""
    return any(isinstance(d, ast.Name) and d.id == "classmethod" for d in function.decorator_list)


def is_static(function: FunctionNode) -> bool:
    """Whether a method takes no object."""
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)


def is_property(function: FunctionNode) -> bool:
    """Whether a method is called by naming it."""
    return any(isinstance(d, ast.Name) and d.id.endswith("property") for d in function.decorator_list)
