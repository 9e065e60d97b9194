"""Expressions in the sharding proof: which kind a value has, and where it leaves what is understood."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from dp2ddp.analysis.proof import kinds, tensor_ops
from dp2ddp.analysis.proof.calls import Calls
from dp2ddp.analysis.proof.kinds import CLEAN, ZERO, Kind, Unprovable, What
from dp2ddp.analysis.proof.result import Reduction

if TYPE_CHECKING:
    from dp2ddp.analysis.proof.frame import Frame


class Evaluator:
    """Computes the kinds of expressions for one frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.calls = Calls(frame, self)

    def kind(self, node: ast.expr) -> Kind:
        """The kind of an expression."""
        try:
            handler = getattr(self, f"_of_{type(node).__name__}", self._of_other)
            found: Kind = handler(node)
        except Unprovable as problem:
            raise self.frame.fail(str(problem), node) from problem
        return found

    def clean(self, node: ast.expr) -> None:
        """Evaluate, and put the whole batch's value in place of what is the shard's."""
        self.reduce(node, self.kind(node))

    def reduce(self, node: ast.expr, kind: Kind) -> None:
        """Make a value that leaves what is understood the whole batch's."""
        if kind.clean:
            return
        if kind.what in (What.GROUP, What.LIST):
            self._reduce_elements(node, kind)
        elif kind.what is What.MEAN:
            self.frame.record(Reduction(node, "mean", kind.over))
        elif kind.adds_up or kind.what is What.METER:
            if kind.over:
                self.frame.record(Reduction(node, "sum", kind.over))
        elif kind.what is What.ROWS and not kind.container and not kind.output and kind.dim == 0:
            if kind.grad and self.frame.grad_enabled:
                raise self.frame.fail("outputs go where it can't be told whether each sample is treated alone", node)
            self.frame.record(Reduction(node, "gather", kind.over))
        else:
            raise self.frame.fail(f"a value that is {kind.what.value} leaves the loop", node)

    def _reduce_elements(self, node: ast.expr, kind: Kind) -> None:
        if isinstance(node, (ast.Tuple, ast.List)) and kind.what is What.GROUP and len(node.elts) == len(kind.parts):
            for element, part in zip(node.elts, kind.parts):
                self.reduce(element, part)
            return
        raise self.frame.fail("several values of the shard leave the loop as one", node)

    # -- plain expressions -----------------------------------------------------------------------------------------

    def _of_other(self, node: ast.expr) -> Kind:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.clean(child)
        return CLEAN

    def _of_Constant(self, node: ast.Constant) -> Kind:  # noqa: N802 (named after the node)
        return ZERO if type(node.value) in (int, float) and node.value == 0 else CLEAN

    def _of_Name(self, node: ast.Name) -> Kind:  # noqa: N802
        if node.id not in self.frame.env and self.frame.inside_loop:
            return CLEAN
        kind = self.frame.lookup(node.id)
        if kind.what is What.MIXED:
            raise Unprovable(f"`{node.id}` is {kind.what.value}")
        if kind.what is What.METER and not kind.over:
            self.frame.env[node.id] = CLEAN  # somebody else gets to see it, so it has to be right at all times
            return CLEAN
        return kind

    def _of_Attribute(self, node: ast.Attribute) -> Kind:  # noqa: N802
        meter = self.meter_of(node.value)
        if meter is not None:
            self.reduce(node.value, meter)
            return CLEAN
        base = self.kind(node.value)
        if base.clean:
            return CLEAN
        if base.what is What.ROWS and node.attr == "shape":
            return Kind(What.SHAPE, base.over, dim=base.dim)
        if node.attr == "data" and not base.container:
            return replace(base, grad=False, output=False)  # only a tensor has it
        if node.attr in ("device", "dtype", "is_cuda", "requires_grad", "ndim"):
            return CLEAN
        if base.what is What.ROWS and node.attr == "T" and base.dim in (0, 1):
            return replace(base, dim=1 - base.dim)
        raise Unprovable(f"`.{node.attr}` of {base.what.value}")

    def meter_of(self, node: ast.expr) -> Kind | None:
        if isinstance(node, ast.Name):
            kind = self.frame.lookup(node.id)
            if kind.what is What.METER:
                return kind
        return None

    def _of_Subscript(self, node: ast.Subscript) -> Kind:  # noqa: N802
        base, index = self.kind(node.value), self.kind(node.slice)
        if base.clean:
            if index.what is What.ROWS:
                return replace(index, grad=False, wide=False)  # a table looked up for each sample
            if not index.clean:
                raise Unprovable("an index depends on the shard")
            return CLEAN
        if base.what is What.SHAPE:
            position = node.slice.value if isinstance(node.slice, ast.Constant) else None
            return tensor_ops.size_along(Kind(What.ROWS, base.over, dim=base.dim), position)
        if base.what is What.GROUP and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
            return base.parts[node.slice.value]
        if base.what is What.LIST and base.parts and index.clean:
            return base.parts[0]
        if base.what is What.ROWS and index.clean:
            return self._rows_at(base, node.slice)
        if _is_number(base) and isinstance(node.slice, ast.Constant) and node.slice.value == 0:
            return base  # `loss.data[0]`, from before `.item()`
        raise Unprovable(f"an element of {base.what.value}")

    def _rows_at(self, base: Kind, index: ast.expr) -> Kind:
        if base.container:
            if isinstance(index, ast.Constant):
                return kinds.rows(base.over)
            raise Unprovable("a part of the batch that can't be told")
        if base.output:
            raise Unprovable("an element of what the model returns, which can be a tensor or a tuple")
        first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
        everything = isinstance(first, ast.Slice) and first.lower is None and first.upper is None and first.step is None
        if base.dim == 0 and isinstance(index, ast.Tuple) and everything:
            return base
        if base.dim == 1 and isinstance(index, ast.Slice):
            return base
        raise Unprovable("some samples of the shard are picked out")

    def _of_BinOp(self, node: ast.BinOp) -> Kind:  # noqa: N802
        if isinstance(node.op, ast.Mod) and isinstance(node.left, (ast.Constant, ast.JoinedStr)):
            self.clean(node.right)
            return CLEAN
        left, right = self.kind(node.left), self.kind(node.right)
        try:
            return self.binary(node.op, left, right)
        except Unprovable:
            # A ratio of sums, and the like: computed of the whole batch's numbers.
            if not (_is_number(left) and _is_number(right)) or left.grad or right.grad:
                raise
        self.reduce(node.left, left)
        self.reduce(node.right, right)
        return CLEAN

    def binary(self, op: ast.operator, left: Kind, right: Kind) -> Kind:
        """The kind of `left op right`."""
        if isinstance(op, (ast.Add, ast.Sub)):
            return kinds.add(left, right)
        if isinstance(op, ast.Mult):
            return kinds.multiply(left, right)
        if isinstance(op, ast.Div):
            return kinds.divide(left, right)
        if left.clean and right.clean:
            return CLEAN
        return kinds.elementwise(left, right)

    def _of_UnaryOp(self, node: ast.UnaryOp) -> Kind:  # noqa: N802
        kind = self.kind(node.operand)
        if isinstance(node.op, ast.Not) and not kind.clean:
            raise Unprovable("a decision depends on the shard")
        return kind

    def _of_Compare(self, node: ast.Compare) -> Kind:  # noqa: N802
        found = self.kind(node.left)
        for other in node.comparators:
            kind = self.kind(other)
            if found.clean and kind.clean:
                found = CLEAN
            elif What.ROWS in (found.what, kind.what) and not isinstance(
                node.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn)
            ):
                found = kinds.elementwise(found, kind).without_grad()
            elif isinstance(node.ops[0], (ast.Is, ast.IsNot)) or self.frame.forward:
                found = CLEAN
            else:
                raise Unprovable("a value of the shard is compared, so the ranks could part")
        return found

    def _of_BoolOp(self, node: ast.BoolOp) -> Kind:  # noqa: N802
        found = [self.kind(v) for v in node.values]
        if not all(k.clean for k in found):
            raise Unprovable("a decision depends on the shard")
        return CLEAN

    def _of_IfExp(self, node: ast.IfExp) -> Kind:  # noqa: N802
        if not self.kind(node.test).clean:
            raise Unprovable("a decision depends on the shard")
        return kinds.join(self.kind(node.body), self.kind(node.orelse))

    def _of_Tuple(self, node: ast.Tuple) -> Kind:  # noqa: N802
        return kinds.group(tuple(self.kind(e) for e in node.elts))

    def _of_List(self, node: ast.List) -> Kind:  # noqa: N802
        if not node.elts and self.frame.inside_loop:
            return Kind(What.LIST)  # filled and returned within the loop's body
        return kinds.group(tuple(self.kind(e) for e in node.elts))

    def _of_ListComp(self, node: ast.ListComp) -> Kind:  # noqa: N802
        for generator in node.generators:
            if not self.kind(generator.iter).clean:
                raise Unprovable("a loop goes over the samples of the shard one by one")
            self.frame.assign(generator.target, CLEAN, generator.iter)
            for test in generator.ifs:
                self.clean(test)
        element = self.kind(node.elt)
        return CLEAN if element.clean else Kind(What.LIST, element.over, parts=(element,))

    def _of_GeneratorExp(self, node: ast.GeneratorExp) -> Kind:  # noqa: N802
        return self._of_ListComp(node)  # type: ignore[arg-type]

    def _of_SetComp(self, node: ast.SetComp) -> Kind:  # noqa: N802
        if not self._of_ListComp(node).clean:  # type: ignore[arg-type]
            raise Unprovable("values of the shard are put into a set")
        return CLEAN

    def _of_DictComp(self, node: ast.DictComp) -> Kind:  # noqa: N802
        for element in (node.key, node.value):
            listed = ast.copy_location(ast.ListComp(elt=element, generators=node.generators), node)
            if not self._of_ListComp(listed).clean:
                raise Unprovable("values of the shard are put into a dictionary")
        return CLEAN

    def _of_Lambda(self, node: ast.Lambda) -> Kind:  # noqa: N802
        if any(isinstance(n, ast.Name) and not self.frame.lookup(n.id).clean for n in ast.walk(node.body)):
            raise Unprovable("a lambda uses a value of the shard")
        return CLEAN

    def _of_NamedExpr(self, node: ast.NamedExpr) -> Kind:  # noqa: N802
        kind = self.kind(node.value)
        self.frame.assign(node.target, kind, node.value)
        return kind

    def _of_Yield(self, node: ast.Yield) -> Kind:  # noqa: N802
        if self.frame.loop is not None:
            raise Unprovable("the loop over the batches is a generator")
        return CLEAN

    def _of_Call(self, node: ast.Call) -> Kind:  # noqa: N802
        return self.calls.kind(node)


def _is_number(kind: Kind) -> bool:
    return kind.clean or kind.adds_up or kind.what is What.MEAN
