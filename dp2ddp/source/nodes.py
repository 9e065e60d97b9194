"""Single syntax nodes: their order, what they lead to, arguments of calls, and shapes with a meaning."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import TypeVar

_BLOCKS = ("body", "orelse", "finalbody")
_Any = TypeVar("_Any")
_Node = TypeVar("_Node", bound=ast.AST)


def in_order(nodes: Iterable[_Node]) -> list[_Node]:
    """Nodes in the order of the text."""
    return sorted(nodes, key=_place)


def _place(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements in a tree, outer ones first."""
    todo = [tree]
    for node in todo:  # which grows as it is read: thousands of `elif` stand one in another
        # (The body of a lambda or a conditional expression is no list, and never gets here as a statement.)
        found = [block for name in _BLOCKS if isinstance(block := getattr(node, name, None), list)]
        yield from found
        todo += [*chain(*found), *getattr(node, "handlers", ()), *getattr(node, "cases", ())]


def closure(start: Iterable[_Any], step: Callable[[_Any], Iterable[_Any]]) -> Iterator[_Any]:
    """What `start` leads to, by one step after another, itself included; each once, and found as far as asked."""
    todo, seen = list(start), set[_Any]()
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            yield one
            todo += step(one)


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of the keyword argument `name`, None where it isn't given by name."""
    return next((k.value for k in call.keywords if k.arg == name), None)


def argument(call: ast.Call, position: int, name: str) -> ast.expr | None:
    """An argument given by position or by name."""
    if position < len(call.args) and not any(isinstance(a, ast.Starred) for a in call.args[: position + 1]):
        return call.args[position]
    return keyword(call, name)


def given_to(call: ast.Call) -> list[ast.expr]:
    """All values that a call is given, by position and by name."""
    return [*call.args, *(k.value for k in call.keywords)]


def names_in(node: ast.AST) -> set[str]:
    """The names that stand in a node."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def last_name(node: ast.AST) -> str:
    """The name `c` of `a.b.c`, or of a plain `c`; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_main_guard(node: ast.AST) -> bool:
    """Whether `node` is `if __name__ == "__main__":`."""
    if not (isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and len(node.test.comparators) == 1):
        return False
    sides = [node.test.left, node.test.comparators[0]]
    asks = isinstance(node.test.ops[0], ast.Eq) and any(isinstance(s, ast.Name) and s.id == "__name__" for s in sides)
    return asks and any(isinstance(s, ast.Constant) and s.value == "__main__" for s in sides)


def attribute_got(node: ast.AST) -> tuple[ast.expr, str] | None:
    """The object and the attribute of `getattr(object, "attribute")`; None for anything else."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"):
        return None
    name = node.args[1] if len(node.args) == 2 else None
    if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
        return None
    return node.args[0], name.value
