"""Whether a loader's `collate_fn` visibly only puts columns together, so that rows stay apart in it."""

from __future__ import annotations

import ast

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.roles.kinds import Function
from dp2ddp.source.nodes import keyword

_FUNCTIONS = frozenset(
    "torch.stack torch.tensor torch.as_tensor torch.from_numpy torch.Tensor torch.FloatTensor torch.LongTensor "
    "torch.utils.data.default_collate torch.utils.data.dataloader.default_collate numpy.array numpy.asarray "
    "numpy.stack builtins.zip builtins.list builtins.tuple builtins.dict builtins.map".split()
)
_METHODS = frozenset({"append", "float", "long", "int", "items", "keys", "values"})
#: What makes a sample's part depend on the others, or on its place.
_MIXES = (ast.If, ast.IfExp, ast.While, ast.Try, ast.AugAssign, ast.Delete, ast.NamedExpr, ast.Global, ast.Nonlocal)


def only_stacks_columns(facts: Facts, loader: ast.Call) -> bool:
    """Of a `DataLoader(...)` that has a `collate_fn`; False where that isn't seen. To be checked as it runs."""
    given = keyword(loader, "collate_fn")
    if given is None:
        return False
    if isinstance(given, ast.Lambda):
        return _stacks(facts, [given.body])
    found = [role.definition for role in facts.resolver.roles(given) if isinstance(role, Function)]
    return len(found) == 1 and _stacks(facts, found[0].body)


def _stacks(facts: Facts, body: list[ast.stmt] | list[ast.expr]) -> bool:
    nodes = [node for each in body for node in ast.walk(each)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return bool(calls) and all(_keeps_apart(facts, node) for node in nodes)


def _keeps_apart(facts: Facts, node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS
        return is_method or facts.names.qualified(node.func) in _FUNCTIONS
    if isinstance(node, ast.comprehension):
        return not node.ifs
    return not isinstance(node, _MIXES) and not (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store))
