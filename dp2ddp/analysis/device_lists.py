"""Lists of devices that are made of lists of numbers, in a loop, as programs of incremental learning have it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from dp2ddp.analysis.bound_once import only_value
from dp2ddp.source.nodes import argument

if TYPE_CHECKING:
    from dp2ddp.analysis.facts import Facts

_COPYING = frozenset({"copy.copy", "copy.deepcopy", "builtins.list", "builtins.tuple"})


def made_of(facts: Facts, value: ast.expr) -> ast.expr:
    """What says the same devices in the same order: what a copy is made of, what a loop makes a device of each of."""
    passed: set[ast.expr] = set()
    while value not in passed:  # `cfg = copy.copy(cfg)` of what is imported by this name
        passed.add(value)
        inner: ast.expr | None = None
        if isinstance(value, ast.Name):
            inner = _looped_over(facts, value) or only_value(facts, value)
        elif isinstance(value, ast.Call) and facts.names.qualified(value.func) in _COPYING:
            inner = argument(value, 0, "x")
        if inner is None:
            return value
        value = inner
    return value


def _looped_over(facts: Facts, name: ast.Name) -> ast.expr | None:
    """What a loop goes over that fills a list, empty before, with one device for each: of the number that it draws."""
    function = facts.source.function(name)
    stores = [
        facts.source.parent(n) for n in facts.source.stores.get(name.id, ()) if facts.source.function(n) is function
    ]
    if function is None or [ast.unparse(each) for each in stores if each is not None] != [f"{name.id} = []"]:
        return None
    alike = [n for n in ast.walk(function) if isinstance(n, ast.Attribute) and ast.unparse(n.value) == name.id]
    line = facts.source.statement(alike[0]) if [n.attr for n in alike] == ["append"] else None
    loop = facts.source.parent(line) if isinstance(line, ast.Expr) else None
    if not isinstance(loop, ast.For) or line not in loop.body:
        return None
    drawn, inside = ast.unparse(loop.target), set(ast.walk(loop))
    spelled = [index for node, index in facts.spelling if node in inside]
    passes = any(isinstance(node, (ast.Continue, ast.Break, ast.Return)) for node in inside)
    is_each = bool(spelled) and all(ast.unparse(index) == drawn for index in spelled)
    return loop.iter if is_each and not passes else None
