"""Whether a script only ever calls what is inside of its wraps, as some evaluations do: `model.module.forward(x)`."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from dp2ddp.analysis.roles import Class, Function, Resolver, Wrapped, Wrapper
from dp2ddp.source.names import Names
from dp2ddp.source.program import FunctionNode, ParsedProgram

#: Methods that run no forward.
_QUIET = frozenset(
    "state_dict load_state_dict eval train to cuda cpu half float parameters named_parameters modules named_modules "
    "children requires_grad_ zero_grad".split()
)
_GIVING_ITSELF = frozenset("eval train to cuda cpu half float requires_grad_".split())
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


def is_taken_off(source: ParsedProgram, wrap: ast.Call) -> bool:
    """Whether a wrap only serves a checkpoint's keys: it has a name in a function, or script, that never calls it."""
    made: ast.AST = wrap
    scope = source.function(wrap) or source.module(wrap)
    while isinstance(method := source.parent(made), ast.Attribute) and method.attr in _GIVING_ITSELF:
        made = source.parent(method) or method  # `nn.DataParallel(net).cuda()`
    kept = source.parent(made)
    target = kept.targets[0] if isinstance(kept, ast.Assign) and len(kept.targets) == 1 else None
    in_class = source.scope(wrap) is not scope
    if in_class or not isinstance(target, ast.Name) or _is_shared(source, scope, target.id):
        return False
    given = set(ast.walk(made))
    named = (n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == target.id and n not in given)
    above = [source.parent(n) for n in named if isinstance(n.ctx, ast.Load)]
    attributes = [each for each in above if isinstance(each, ast.Attribute)]
    is_quiet = all(each.attr == "module" or _is_quiet_line(source, each, target.id) for each in attributes)
    taken = [source.parent(each) for each in attributes if each.attr == "module"]
    if isinstance(scope, ast.Module):  # of a script, which hands what is inside to `torch.jit.script`, say
        serves = any(isinstance(each, (ast.Call, ast.keyword, ast.Assign)) for each in taken)
    else:
        serves = bool(taken) or any(each.attr == "load_state_dict" for each in attributes)
    return len(attributes) == len(above) and is_quiet and serves


def _is_shared(source: ParsedProgram, scope: ast.Module | FunctionNode, name: str) -> bool:
    """Whether others may use a name that is bound in a function, or a module: none takes it from a script."""
    return scope not in source.entry_trees if isinstance(scope, ast.Module) else name not in source.local_names(scope)


def _is_quiet_line(source: ParsedProgram, method: ast.Attribute, name: str) -> bool:
    """Whether a method runs no forward, and what it gives isn't the wrap under another name: `other = net.eval()`."""
    if method.attr not in _QUIET - _GIVING_ITSELF:
        call = source.parent(method)
        line = source.parent(call) if call is not None else None
        again = isinstance(line, ast.Assign) and [ast.unparse(target) for target in line.targets] == [name]
        return method.attr in _QUIET and (again or isinstance(line, ast.Expr))
    return True


def _is_inside_called(source: ParsedProgram, uses: Iterable[ast.AST]) -> bool:
    """Whether `model.module`, or a method of it that runs it, is called."""
    for use in uses:
        chain = source.parent(use)
        if isinstance(chain, ast.Attribute) and chain.attr == "module":
            above = source.parent(chain)
            while isinstance(above, ast.Attribute):
                chain, above = above, source.parent(above)
            call = above
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
        known = resolver.holds(above.func, Function, Class, Wrapper) or names.qualified(above.func) in _ASKING
        return node is not above.func and known
    if isinstance(above, ast.Tuple):
        above = source.parent(above)
    return isinstance(above, _KEEPING)
