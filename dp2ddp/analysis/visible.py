"""What names mean where the processes start: whether an expression from elsewhere can be written there."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from dp2ddp.analysis.control.loops import local_names
from dp2ddp.analysis.launch.placement import Launch
from dp2ddp.source.names import Own
from dp2ddp.source.program import FunctionNode

if TYPE_CHECKING:
    from dp2ddp.analysis.facts import Facts


def written(facts: Facts, launch: Launch, node: ast.expr | None) -> str | None:
    """`device_ids` as it can be written where the processes start, None where it can't."""
    seen: set[tuple[ast.AST | None, str]] = set()
    while node is not None:
        counted = _counted(facts, node)
        if counted is not None:
            return counted
        if visible(facts, launch, node):
            return None if _is_set_later(facts, launch, node) else " ".join(facts.source.segment(node).split())
        if not isinstance(node, ast.Name) or (facts.source.function(node), node.id) in seen:
            return None
        seen.add((facts.source.function(node), node.id))
        node = _only_value(facts, node)
    return None


def _counted(facts: Facts, node: ast.expr) -> str | None:
    """`range(n)` and `list(range(n))` with what `n` is, if that is the number of devices, wherever it was counted."""
    inner = node
    while isinstance(inner, ast.Call) and facts.names.qualified(inner.func) in ("builtins.range", "builtins.list"):
        if len(inner.args) != 1 or inner.keywords:
            return None
        inner = inner.args[0]
    if not isinstance(inner, ast.Name) or inner is node:
        return None
    value = _only_value(facts, inner)
    path = facts.names.qualified(value.func) if isinstance(value, ast.Call) else None
    return ast.unparse(node).replace(f"({inner.id})", f"({path}())") if path in DEVICE_COUNTS else None


DEVICE_COUNTS = ("torch.cuda.device_count", "torch.accelerator.device_count")
_ALL_DEVICES = frozenset({"None", *(text for n in DEVICE_COUNTS for text in (f"range({n}())", f"list(range({n}()))"))})


def means_all(facts: Facts, node: ast.expr) -> bool:
    """Whether `device_ids` are all visible devices, as they are without being given."""
    return (_counted(facts, node) or facts.source.segment(node)) in _ALL_DEVICES


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


def _is_set_later(facts: Facts, launch: Launch, node: ast.expr) -> bool:
    """Whether a name in an expression, or an attribute of it there, gets another value behind the launch, and before
    the expression."""
    assert launch.statement is not None
    start = launch.statement
    function, here = facts.source.function(start), facts.source.function(node)
    read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    attributes = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}

    def sets(other: ast.AST) -> bool:
        if not isinstance(getattr(other, "ctx", None), ast.Store):
            return False
        if isinstance(other, ast.Attribute):
            return other.attr in attributes and isinstance(other.value, ast.Name)
        if not isinstance(other, ast.Name) or other.id not in read:
            return False
        local = function is not None and other.id in local_names(function)
        return facts.source.scope(other) is (function if local else facts.source.module(start))

    setting = [other for other in facts.source.nodes if sets(other)]
    earlier = facts.before.nodes(launch) if setting else set()
    return any(
        other not in earlier and not (facts.source.function(other) is here and _line(other) > node.lineno)
        for other in setting
    )


def _line(node: ast.AST) -> int:
    return node.lineno  # type: ignore[attr-defined,no-any-return]


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
