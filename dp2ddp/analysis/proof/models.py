"""What a wrapped model returns: rows, a tuple of rows, or something that ends the proof."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from dp2ddp.analysis.proof import kinds, losses
from dp2ddp.analysis.proof.kinds import Kind, What
from dp2ddp.analysis.roles import Criterion, Module, Role, Wrapped
from dp2ddp.analysis.source import FUNCTIONS, FunctionNode, in_order

if TYPE_CHECKING:
    from dp2ddp.analysis.proof.frame import Frame


class Models:
    """Looks into the models that a frame calls."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.names = frame.context.names
        self.resolver = frame.context.resolver

    def outputs(self, node: ast.Call, roles: frozenset[Role], shard: list[Kind]) -> Kind:
        """What the model returns: rows, or a tuple of rows; a loss of its own ends the proof."""
        modules = {r for role in roles for r in (self.resolver.inner(role) if isinstance(role, Wrapped) else (role,))}
        over = shard[0].over
        one = Kind(What.ROWS, over, grad=self.frame.grad_enabled, wide=True, output=True)
        known = in_order(m.definition for m in modules if isinstance(m, Module) and m.definition is not None)
        if len(known) != len(modules) or not known:
            if len(shard) > 1:
                raise self.frame.fail("the model takes several parts of the batch, perhaps to compute its loss", node)
            return one
        shapes = {self._forward_shape(definition, node) for definition in known}
        if len(shapes) != 1:
            raise self.frame.fail("the model returns different things", node)
        count = shapes.pop()
        if count is None:
            return replace(one, output=False)
        return kinds.group((replace(one, output=False),) * count)

    def _forward_shape(self, definition: ast.ClassDef, node: ast.Call) -> int | None:
        """How many outputs `forward` returns, None for one that is no tuple."""
        forward = next((m for m in definition.body if isinstance(m, FUNCTIONS) and m.name == "forward"), None)
        if forward is None:
            raise self.frame.fail(f"`{definition.name}` has no forward of its own", node)
        counts: set[int | None] = set()
        for statement in ast.walk(forward):
            for returned in _choices(statement.value) if isinstance(statement, ast.Return) else ():
                values = returned.elts if isinstance(returned, ast.Tuple) else [returned]
                counts.add(len(values) if isinstance(returned, ast.Tuple) else None)
                if any(self._is_scalar(v, forward) for v in values):
                    raise self.frame.fail(
                        f"`{definition.name}` returns a loss, or another number that is not a row", node
                    )
        if len(counts) != 1:
            raise self.frame.fail(f"`{definition.name}` returns different things", node)
        return counts.pop()

    def _is_scalar(self, value: ast.expr, forward: FunctionNode, depth: int = 4) -> bool:
        """Whether a returned expression can be a loss, or a mean or sum over everything."""
        if isinstance(value, ast.Name) and depth:
            assigned = [n.value for n in ast.walk(forward) if isinstance(n, ast.Assign) and _binds(n, value.id)]
            return any(self._is_scalar(a, forward, depth - 1) for a in assigned)
        if isinstance(value, ast.BinOp):
            return self._is_scalar(value.left, forward, depth) and self._is_scalar(value.right, forward, depth)
        if not isinstance(value, ast.Call):
            return isinstance(value, (ast.Dict, ast.Constant))
        path = self.names.qualified(value.func) or ""
        if losses.is_loss_function(path) or self.resolver.holds(value.func, Criterion):
            return True
        name = value.func.attr if isinstance(value.func, ast.Attribute) else ""
        whole = len(value.args) == int(path.startswith("torch."))
        return name in ("mean", "sum", "norm") and whole and not value.keywords


def _choices(value: ast.expr | None) -> list[ast.expr]:
    """What a returned expression can be: both sides of `a if test else b`."""
    if isinstance(value, ast.IfExp):
        return [*_choices(value.body), *_choices(value.orelse)]
    return [] if value is None else [value]


def _binds(node: ast.Assign, name: str) -> bool:
    return any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
