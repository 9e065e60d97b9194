"""What a name holds that is bound once."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from dp2ddp.source.names import Own
from dp2ddp.source.program import FUNCTIONS, FunctionNode

if TYPE_CHECKING:
    from dp2ddp.analysis.facts import Facts

_FILLING = frozenset("append extend insert remove pop clear update add setdefault sort reverse".split())


def only_value(facts: Facts, name: ast.Name) -> ast.expr | None:
    """What the name is bound to, once: in the function that uses it, or else in the module that has it."""
    values = _values(facts, name)
    return values[0].value if len(values) == 1 else None


def switched(facts: Facts, name: ast.Name) -> ast.IfExp | None:
    """What the name is bound to, once, and once more on one condition: `use = False`, `if test: use = True`."""
    values = _values(facts, name)
    branch = facts.source.parent(values[1]) if len(values) == 2 else None
    if not isinstance(branch, ast.If) or values[1] not in branch.body:
        return None
    block = facts.source.block(branch)
    is_first = values[0] in block and block.index(values[0]) < block.index(branch)
    return ast.IfExp(branch.test, values[1].value, values[0].value) if is_first else None


def _values(facts: Facts, name: ast.Name) -> list[ast.Assign]:
    """The assignments that bind a name, if nothing else does."""
    function = facts.source.function(name)
    if function is not None and name.id in all_parameters(function):
        return []  # it is what the function is given, too
    local = function is not None and name.id in facts.source.local_names(function)
    target = facts.names.target(name)
    if not local and isinstance(target, Own):
        scope, wanted = target.module, target.name
    else:
        scope, wanted = function if local else facts.source.module(name), name.id  # type: ignore[assignment]
    stores = [n for n in facts.source.stores.get(wanted, ()) if isinstance(n, ast.Name) and _is_of(facts, n, scope)]
    found = [above for n in stores if isinstance(above := facts.source.parent(n), ast.Assign) and n in above.targets]
    is_all = len(found) == len(stores) and not _is_set_from_outside(facts, target)
    return found if is_all and not any(is_filled(facts, n) for n in stores) else []


def _is_set_from_outside(facts: Facts, target: object) -> bool:
    """Whether another module sets a module's name: `config.GPUS = args.gpus`."""
    stores = facts.source.stores.get(target.name, ()) if isinstance(target, Own) else ()
    return any(isinstance(n, ast.Attribute) and facts.names.target(n) == target for n in stores)


def _is_of(facts: Facts, name: ast.Name, scope: ast.AST) -> bool:
    """Whether a name that is bound is a function's or a module's own."""
    here = facts.source.scope(name)
    in_function = isinstance(here, FUNCTIONS) and name.id in facts.source.local_names(here)
    return here is scope or (
        not in_function and not isinstance(here, ast.ClassDef) and facts.source.module(name) is scope
    )


def is_filled(facts: Facts, name: ast.Name) -> bool:
    """Whether what a name holds gets its contents later: `ids = []`, and then `ids.append(0)`."""
    value = facts.source.parent(name)
    if not isinstance(value, ast.Assign) or not isinstance(value.value, (ast.List, ast.ListComp, ast.Dict, ast.Call)):
        return False
    scope = facts.source.scope(name)
    used = (n for n in facts.source.nodes if isinstance(n, ast.Name) and n.id == name.id)
    above = (facts.source.parent(n) for n in used if facts.source.scope(n) is scope)
    return any(
        (isinstance(each, ast.Attribute) and each.attr in _FILLING)
        or (isinstance(each, ast.Subscript) and not isinstance(each.ctx, ast.Load))
        for each in above
    )


def all_parameters(function: FunctionNode) -> set[str]:
    return {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
