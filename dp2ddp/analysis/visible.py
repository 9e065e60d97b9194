"""What names mean where the processes start: whether an expression from elsewhere can be written there."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from dp2ddp.analysis.control.loops import local_names
from dp2ddp.analysis.launch.launch import Launch
from dp2ddp.source.names import Own
from dp2ddp.source.program import FunctionNode

if TYPE_CHECKING:
    from dp2ddp.analysis.facts import Facts


def written(facts: Facts, launch: Launch, node: ast.expr | None) -> str | None:
    """`device_ids` as it can be written where the processes start, None where it can't."""
    seen: set[tuple[ast.AST | None, str]] = set()
    while node is not None:
        if visible(facts, launch, node):
            return " ".join(facts.source.segment(node).split())
        if not isinstance(node, ast.Name) or (facts.source.function(node), node.id) in seen:
            return None
        seen.add((facts.source.function(node), node.id))
        node = _only_value(facts, node)
    return None


def visible(facts: Facts, launch: Launch, node: ast.expr) -> bool:
    """Whether every name in an expression means the same where the processes start."""
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    inner = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return all(_means_the_same(facts, launch, n) for n in names if n.id not in inner)


def _means_the_same(facts: Facts, launch: Launch, name: ast.Name) -> bool:
    if (facts.names.qualified(name) or "").startswith("builtins."):
        return True
    if name.id not in launch.visible:
        return False
    assert launch.statement is not None
    function, start = facts.source.function(name), facts.source.function(launch.statement)
    if function is not None and function is not start and name.id in local_names(function):
        return _handed_on(facts, launch, function, name.id)
    there = facts.source.module(launch.statement)
    if facts.source.module(name) is there:
        return True
    # A name of another module: imported from the same place.
    target = facts.names.target(name) or Own(facts.source.module(name), name.id)
    return facts.names.follow(there, name.id) == target


def _handed_on(facts: Facts, launch: Launch, function: FunctionNode, name: str) -> bool:
    """Whether every caller gives the function this name's value under the same name."""
    assert launch.statement is not None
    calls = [c for c in facts.source.calls for f in facts.resolver.functions_called(c) if f.definition is function]
    there = facts.source.module(launch.statement)
    return bool(calls) and all(
        facts.epochs.written_by_caller(c, function, name) == name and facts.source.module(c) is there for c in calls
    )


def _only_value(facts: Facts, name: ast.Name) -> ast.expr | None:
    """What the name is bound to, once: by its only caller, in the function that uses it, or else in the module."""
    function = facts.source.function(name)
    if function is not None and name.id in {a.arg for a in ast.walk(function.args) if isinstance(a, ast.arg)}:
        passed = (one for call in facts.source.calls for one in facts.resolver.arguments(call))
        values = [value for callee, parameter, value in passed if (callee, parameter) == (function, name.id)]
        return values[0] if len(values) == 1 and not isinstance(values[0], ast.Starred) else None
    local = function is not None and name.id in local_names(function)
    scope = function if local else facts.source.module(name)
    values = [
        n.value
        for n in facts.source.nodes
        if isinstance(n, ast.Assign)
        and facts.source.scope(n) is scope
        and any(isinstance(t, ast.Name) and t.id == name.id for t in n.targets)
    ]
    return values[0] if len(values) == 1 else None
