"""One function body in the sharding proof: statements in order, branches joined, loops until nothing changes."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cached_property

from dp2ddp.analysis.handlers import leaves
from dp2ddp.analysis.loops import DataLoop, local_names, root_of
from dp2ddp.analysis.proof import kinds
from dp2ddp.analysis.proof.expressions import Evaluator
from dp2ddp.analysis.proof.kinds import CLEAN, MIXED, Kind, Unprovable, What
from dp2ddp.analysis.proof.meters import is_meter
from dp2ddp.analysis.proof.result import Context, NoProofError, Reduction
from dp2ddp.analysis.roles import Class
from dp2ddp.analysis.source import FUNCTIONS, FunctionNode


class Frame:
    """The interpretation of one function body (or of the module)."""

    _ROUNDS = 12

    def __init__(
        self, context: Context, root: ast.Module | FunctionNode, arguments: dict[str, Kind] | None = None
    ) -> None:
        self.context = context
        self.root = root
        self.env: dict[str, Kind | None] = dict(arguments or {})
        # A frame inside a sharded loop: its lists live in the loop's body, and what it returns goes back into it.
        self.inside_loop = arguments is not None
        self.loop: DataLoop | None = None
        self.forward = False
        self.recording = True
        self.grad_enabled = not (
            isinstance(root, FUNCTIONS) and any(self._disables_grad(d) for d in root.decorator_list)
        )
        self.returned: Kind | None = None
        self.torn: set[str] = set()  # what holds a shard's values where an exception ends a loop
        self.depth = 0
        self.loop_root = root  # the function in which the loop over the batches stands
        self.evaluator = Evaluator(self)

    def run(self) -> Kind:
        """Interpret the body; the kind of what it returns."""
        self.block(self.root.body)
        return self.returned or CLEAN

    def callee(self, function: FunctionNode, arguments: dict[str, Kind]) -> Frame:
        """The frame of a function that this one calls with values of its shard."""
        frame = Frame(self.context, function, arguments)
        frame.recording = self.recording
        frame.grad_enabled = frame.grad_enabled and self.grad_enabled
        frame.depth = self.depth + 1
        frame.loop_root = self.loop_root
        return frame

    def fail(self, reason: str, node: ast.AST) -> NoProofError:
        """The error to raise where the proof fails."""
        return NoProofError(reason, node)

    # -- statements ------------------------------------------------------------------------------------------------

    def block(self, statements: Iterable[ast.stmt]) -> None:
        """Interpret statements in order."""
        for statement in statements:
            try:
                self._statement(statement)
            except NoProofError as failure:
                self.context.fail(failure)

    def _statement(self, statement: ast.stmt) -> None:
        try:
            handler = getattr(self, f"_do_{type(statement).__name__}", self._do_other)
            handler(statement)
        except Unprovable as problem:
            raise self.fail(str(problem), statement) from problem

    def _do_other(self, node: ast.stmt) -> None:
        if any(isinstance(child, (ast.stmt, ast.ExceptHandler)) for child in ast.walk(node) if child is not node):
            raise self.fail("a statement of a kind that isn't followed", node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.evaluator.clean(child)

    def _do_FunctionDef(self, node: FunctionNode) -> None:  # noqa: N802 (named after the node)
        if self.loop is not None:
            raise self.fail("a function is defined in the loop over the batches", node)

    _do_AsyncFunctionDef = _do_FunctionDef  # noqa: N815

    def _do_ClassDef(self, node: ast.ClassDef) -> None:  # noqa: N802
        return

    def _do_Expr(self, node: ast.Expr) -> None:  # noqa: N802
        self.evaluator.kind(node.value)

    def _do_Assign(self, node: ast.Assign) -> None:  # noqa: N802
        value = self.evaluator.kind(node.value)
        for target in node.targets:
            self.assign(target, value, node.value)

    def _do_AnnAssign(self, node: ast.AnnAssign) -> None:  # noqa: N802
        if node.value is not None:
            self.assign(node.target, self.evaluator.kind(node.value), node.value)

    def _do_AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802
        value = self.evaluator.kind(node.value)
        if not isinstance(node.target, ast.Name):
            # An attribute or an element outlives the loop: it takes whole-batch values only.
            self.evaluator.clean(node.target)
            self.evaluator.reduce(node.value, value)
            return
        old = self.lookup(node.target.id)
        if isinstance(node.op, (ast.Add, ast.Sub)):
            self.env[node.target.id] = self._accumulated(old, value, node)
        else:
            self.env[node.target.id] = self.evaluator.binary(node.op, old, value)

    def _accumulated(self, old: Kind, value: Kind, node: ast.AugAssign) -> Kind:
        """`total += value`: from zero, shards' values pile up to be summed later; else whole-batch values are added."""
        from_zero = old.what is What.ZERO or old.adds_up
        if from_zero and value.what is What.MEAN:
            self.record(Reduction(node.value, "weighted", value.over))
            return kinds.add(old, Kind(What.SUM, value.over))
        if from_zero and value.adds_up:
            return kinds.add(old, value.without_grad())
        if old.clean and not value.clean:
            if value.what is What.ROWS and old.what is not What.ZERO:
                raise self.fail("rows are added up over the batches", node)
            self.evaluator.reduce(node.value, value)
            return CLEAN
        return kinds.add(old, value)

    def _do_If(self, node: ast.If) -> None:  # noqa: N802
        self._check_test(node.test)
        self._branches([node.body, node.orelse])

    def _check_test(self, test: ast.expr) -> None:
        if not self.evaluator.kind(test).clean and not self.forward:
            raise self.fail("the loop branches on a value of its shard", test)

    def _branches(self, bodies: list[list[ast.stmt]]) -> None:
        before = dict(self.env)
        after: dict[str, Kind | None] | None = None
        for body in bodies:
            self.env = dict(before)
            self.block(body)
            after = dict(self.env) if after is None else self._joined(after, self.env)
        self.env = after or before

    @staticmethod
    def _joined(a: dict[str, Kind | None], b: dict[str, Kind | None]) -> dict[str, Kind | None]:
        return {name: kinds.join(a.get(name), b.get(name)) for name in {**a, **b}}

    def _do_For(self, node: ast.For) -> None:  # noqa: N802
        loop = self.context.loops_by_node.get(node)
        if loop is not None:
            self._data_loop(loop)
            return
        iterated = self.evaluator.kind(node.iter)
        if iterated.what in (What.GROUP, What.LIST):
            element: Kind | None = None
            for part in iterated.parts:
                element = kinds.join(element, part)
            self.assign(node.target, element or CLEAN, node.iter)
        elif iterated.clean:
            self.assign(node.target, CLEAN, node.iter)
        else:
            raise self.fail("a loop goes over the samples of the shard one by one", node.iter)
        self._until_stable(node.body)
        self.block(node.orelse)

    def _do_While(self, node: ast.While) -> None:  # noqa: N802
        self._check_test(node.test)
        self._until_stable(node.body)
        self._check_test(node.test)
        self.block(node.orelse)

    def _until_stable(self, body: list[ast.stmt]) -> None:
        """Interpret a loop's body until the kinds at its start don't change; record only then."""
        recording, self.recording = self.recording, False
        start = dict(self.env)
        for _ in range(self._ROUNDS):
            self.env = dict(start)
            self.block(body)
            merged = self._joined(start, self.env)
            if merged == start:
                break
            start = merged
        else:
            raise self.fail("the loop is too involved to follow", body[0])
        self.recording = recording
        self.env = dict(start)
        self.block(body)
        self.env = self._joined(start, self.env)

    def _data_loop(self, loop: DataLoop) -> None:
        if loop.loader is None:
            raise self.fail("the loader that is looped over has no name here", loop.node.iter)
        if self.inside_loop:
            raise self.fail(
                "a loop over a loader stands in a function that another such loop calls with its batch", loop.node
            )
        over = self.context.source.segment(loop.loader)
        outer, self.loop = self.loop, loop
        entry = dict(self.env)
        if loop.counter is not None:
            self.assign(loop.counter, CLEAN, loop.node.iter)
        self.assign(loop.batch, Kind(What.ROWS, over, container=True), loop.node.iter)
        self._until_stable(loop.node.body)
        self.loop = outer
        self.block(loop.node.orelse)
        self.torn.update(name for name, kind in self.env.items() if kind is not None and not kind.clean)
        self._reduce_accumulators(loop, entry, over)

    def _reduce_accumulators(self, loop: DataLoop, entry: dict[str, Kind | None], over: str) -> None:
        """Reduce, right after the loop, the accumulators that are read later."""
        ready = []
        for name, kind in self.env.items():
            piled_up = kind is not None and kind.over == over and (kind.adds_up or kind.what is What.METER)
            if piled_up and name in entry and self._read_outside(name, loop):
                ready.append(name)
        if ready:
            ordered = sorted(ready, key=lambda n: self._first_use(n, loop))
            self.record(Reduction(loop.node, "after", over, tuple(ordered)))
            self.env.update(dict.fromkeys(ordered, CLEAN))

    def _read_outside(self, name: str, loop: DataLoop) -> bool:
        if name in self._globals:
            return True
        inside = set(ast.walk(loop.node))
        # A name at module level can be read from any function.
        return any(
            isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) and n not in inside
            for n in ast.walk(self.root)
        )

    def _first_use(self, name: str, loop: DataLoop) -> tuple[int, int]:
        return min((n.lineno, n.col_offset) for n in ast.walk(loop.node) if isinstance(n, ast.Name) and n.id == name)

    def _do_With(self, node: ast.With) -> None:  # noqa: N802
        enabled = self.grad_enabled
        for item in node.items:
            if self._disables_grad(item.context_expr):
                self.grad_enabled = False
            self.evaluator.clean(item.context_expr)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, CLEAN, item.context_expr)
        self.block(node.body)
        self.grad_enabled = enabled

    def _disables_grad(self, node: ast.expr) -> bool:
        call = node.func if isinstance(node, ast.Call) else node
        path = self.context.names.qualified(call) or ""
        if path in ("torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad"):
            return True
        return (
            path.endswith("set_grad_enabled")
            and isinstance(node, ast.Call)
            and any(isinstance(a, ast.Constant) and a.value is False for a in node.args)
        )

    def _do_Try(self, node: ast.Try) -> None:  # noqa: N802
        if self.loop is not None or self.inside_loop:
            raise self.fail("an exception in the loop could part one rank from the others", node)
        before = dict(self.env)
        outer, self.torn = self.torn, set()
        self.block([*node.body, *node.orelse])
        after = dict(self.env)
        torn = dict.fromkeys(self.torn, MIXED)  # an exception comes before what would be reduced after the loop
        for handler in node.handlers:
            self.env = {**self._joined(before, after), **torn}
            self.block(handler.body)
            if not leaves(handler.body[-1], self.context.names):
                after = self._joined(after, self.env)
        self.env = {**after, **torn}
        self.block(node.finalbody)
        self.env = {name: after.get(name) if kind is MIXED else kind for name, kind in self.env.items()}
        self.torn |= outer

    def _do_Return(self, node: ast.Return) -> None:  # noqa: N802
        if node.value is None:
            return
        kind = self.evaluator.kind(node.value)
        if not self.inside_loop:
            self.evaluator.reduce(node.value, kind)
            kind = CLEAN
        self.returned = kinds.join(self.returned, kind)

    def _do_Delete(self, node: ast.Delete) -> None:  # noqa: N802
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.env[target.id] = None

    def _do_Import(self, node: ast.stmt) -> None:  # noqa: N802
        return

    _do_ImportFrom = _do_Global = _do_Nonlocal = _do_Pass = _do_Break = _do_Continue = _do_Import  # noqa: N815

    # -- names -----------------------------------------------------------------------------------------------------

    def assign(self, target: ast.expr, value: Kind, origin: ast.expr) -> None:
        """Give a target its value's kind. What outlives the loop takes whole-batch values only."""
        if isinstance(target, ast.Name):
            if target.id in self._globals and not value.clean:
                self.evaluator.reduce(origin, value)
                value = CLEAN
            self.env[target.id] = self._meter(origin) or value
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value, origin)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value, origin)
        else:
            self.evaluator.clean(target)
            self.evaluator.reduce(origin, value)

    def _unpack(self, target: ast.Tuple | ast.List, value: Kind, origin: ast.expr) -> None:
        parts: list[Kind]
        count = len(target.elts)
        if value.clean:
            parts = [self._part(origin, i) for i in range(count)]
        elif value.what is What.ROWS and (value.container or value.output):
            parts = [
                Kind(What.ROWS, value.over, value.grad, wide=value.wide, container=_nested(t)) for t in target.elts
            ]
        elif value.what is What.LIST and value.parts:
            parts = [value.parts[0]] * count
        elif value.what is What.GROUP and len(value.parts) == count:
            parts = list(value.parts)
        else:
            raise self.fail(f"{value.what.value} is unpacked", origin)
        elements = origin.elts if isinstance(origin, (ast.Tuple, ast.List)) and len(origin.elts) == count else None
        for i, (one, part) in enumerate(zip(target.elts, parts)):
            self.assign(one, part, elements[i] if elements else origin)

    def _part(self, origin: ast.expr, index: int) -> Kind:
        if isinstance(origin, (ast.Tuple, ast.List)) and index < len(origin.elts):
            return self.evaluator.kind(origin.elts[index])
        return CLEAN

    def _meter(self, origin: ast.expr) -> Kind | None:
        """A meter that this function builds and shows to nobody else can be reduced after the loop."""
        if self.inside_loop or not isinstance(origin, ast.Call):
            return None
        for role in self.context.resolver.roles(origin.func):
            if isinstance(role, Class) and is_meter(role.definition):
                return Kind(What.METER)
        return None

    def lookup(self, name: str) -> Kind:
        """The kind of a name; clean where this frame hasn't assigned it."""
        return self.env.get(name) or CLEAN

    @cached_property
    def _globals(self) -> set[str]:
        if isinstance(self.root, ast.Module):
            return set()
        return {name for n in ast.walk(self.root) if isinstance(n, (ast.Global, ast.Nonlocal)) for name in n.names}

    def record(self, reduction: Reduction) -> None:
        """Keep a reduction, in the last pass over its code."""
        if not self.recording:
            return
        if self.inside_loop and isinstance(self.root, FUNCTIONS):
            self._check_reach(reduction)
            self.context.by_function.setdefault(self.root, {})[reduction.node] = reduction
        self.context.reductions[reduction.node, reduction.how] = reduction

    def _check_reach(self, reduction: Reduction) -> None:
        """In a function that the loop calls, the loader must go by the same name as in the loop."""
        assert isinstance(self.root, FUNCTIONS)
        root = root_of(reduction.over)
        if root == "self":
            reached = isinstance(self.context.source.parent(self.root), ast.ClassDef)
        else:
            module = self.context.source.module
            reached = root not in local_names(self.root) and root not in local_names(self.loop_root)
            reached = reached and module(self.root) is module(self.loop_root)
        if not reached:
            raise self.fail("a value of the shard is used in a function that doesn't know the loader", reduction.node)


def _nested(target: ast.expr) -> bool:
    return isinstance(target, (ast.Tuple, ast.List))
