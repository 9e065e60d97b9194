"""Whether anything in a program names a function or class."""

from __future__ import annotations

import ast
from typing import Union

from dp2ddp.analysis.roles import Class, Function, Resolver
from dp2ddp.source.program import FunctionNode, ParsedProgram

Definition = Union[ast.ClassDef, FunctionNode]
# What can be a function or class; of calls and subscripts, `getattr(models, name)` and `models.__dict__[name]`.
_NAMING = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)


def means(resolver: Resolver, node: ast.AST, definition: Definition) -> bool:
    """Whether an expression can be this function or class."""
    roles = resolver.roles(node)
    return any(isinstance(role, (Class, Function)) and role.definition is definition for role in roles)


def is_reached(source: ParsedProgram, resolver: Resolver, node: ast.AST) -> bool:
    """Whether anything names the function in which a node stands.

    A file that is started may pick its own functions without naming them; so may a decorator, and Python picks methods.
    """
    function = source.function(node)
    if function is None or function.decorator_list or source.module(node) in source.entry_trees:
        return True
    if isinstance(source.parent(function), ast.ClassDef):
        return True
    inside = set(ast.walk(function))
    named = (n for n in source.nodes if isinstance(n, _NAMING) and n not in inside)
    return any(means(resolver, n, function) for n in named)
