"""Whether a script only ever calls what is inside of its wraps, as some evaluations do: `model.module.forward(x)`."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from dp2ddp.analysis.roles import Class, Function, Resolver, Wrapped
from dp2ddp.source.names import Names
from dp2ddp.source.program import ParsedProgram

#: Methods that run no forward.
_QUIET = frozenset(
    "state_dict load_state_dict eval train to cuda cpu half float parameters named_parameters modules named_modules "
    "children requires_grad_ zero_grad".split()
)
_KEEPING = (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr, ast.Compare, ast.BoolOp, ast.NamedExpr)
_ASKING = frozenset({"builtins.isinstance", "builtins.print", "builtins.hasattr", "builtins.type", "builtins.id"})


def are_bypassed(source: ParsedProgram, names: Names, resolver: Resolver, nodes: Iterable[ast.AST]) -> bool:
    """Whether the models that are wrapped are never called, and never handed to what may call them, in some code.

    Args:
        nodes: all nodes of that code.
    """
    nodes = [n for n in nodes if isinstance(n, (ast.Name, ast.Attribute, ast.Call))]
    inner = [n.value for n in nodes if isinstance(n, ast.Attribute) and n.attr == "module"]
    if not _is_inside_called(source, [n for n in inner if resolver.holds(n, Wrapped)]):
        return False
    return all(_is_kept(source, names, resolver, n) for n in nodes if resolver.holds(n, Wrapped))


def _is_inside_called(source: ParsedProgram, uses: Iterable[ast.AST]) -> bool:
    """Whether `model.module`, or a method of it that runs it, is called."""
    for use in uses:
        chain = source.parent(use)
        if isinstance(chain, ast.Attribute) and chain.attr == "module":
            above = source.parent(chain)
            chain = above if isinstance(above, ast.Attribute) else chain
            call = source.parent(chain)
            if isinstance(call, ast.Call) and call.func is chain and chain.attr not in _QUIET:
                return True
    return False


def _is_kept(source: ParsedProgram, names: Names, resolver: Resolver, node: ast.AST) -> bool:
    """Whether a use of a wrapped model calls no forward of the wrap, here or in what isn't known."""
    above = source.parent(node)
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return isinstance(node.value, ast.Name) and node.value.id == "self"
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return True
    if isinstance(above, ast.Attribute):
        return above.attr == "module" or above.attr in _QUIET
    if isinstance(above, ast.keyword):
        above = source.parent(above)
    if isinstance(above, ast.Call):
        known = resolver.holds(above.func, Function, Class) or names.qualified(above.func) in _ASKING
        return node is not above.func and known
    if isinstance(above, ast.Tuple):
        above = source.parent(above)
    return isinstance(above, _KEEPING)
