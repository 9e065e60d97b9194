"""Expressions in the sharding proof: which kind a value has, and where it leaves what is understood."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from dp2ddp.analysis import kinds, losses, tensor_ops
from dp2ddp.analysis.kinds import CLEAN, ZERO, Kind, Unprovable, What
from dp2ddp.analysis.meters import is_meter
from dp2ddp.analysis.roles import Criterion, Function, Module, Scaler, Wrapped
from dp2ddp.analysis.source import FUNCTIONS, FunctionNode

if TYPE_CHECKING:
    from dp2ddp.analysis.proof import Frame, Reduction

_RANDOM_ROOTS = ("random.", "numpy.random.")
_RANDOM_NAMES = frozenset(
    "rand randn randint randperm rand_like randn_like randint_like normal bernoulli multinomial poisson "
    "normal_ uniform_ random_ bernoulli_ exponential_ geometric_ log_normal_ cauchy_ rsample sample".split()
)
_KEEP = frozenset({"builtins.float", "torch.autograd.Variable", "torch.as_tensor", "numpy.asarray", "numpy.array"})


class Evaluator:
    """Computes the kinds of expressions for one frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.names = frame.context.names
        self.resolver = frame.context.resolver

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
        from dp2ddp.analysis.proof import Reduction

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
        meter = self._meter_of(node.value)
        if meter is not None:
            self.reduce(node.value, meter)
            return CLEAN
        base = self.kind(node.value)
        if base.clean:
            return CLEAN
        if base.what is What.ROWS and node.attr == "shape":
            return Kind(What.SHAPE, base.over, dim=base.dim)
        if node.attr == "data":
            return base.without_grad()
        if node.attr in ("device", "dtype", "is_cuda", "requires_grad", "ndim"):
            return CLEAN
        if base.what is What.ROWS and node.attr == "T" and base.dim in (0, 1):
            return replace(base, dim=1 - base.dim)
        raise Unprovable(f"`.{node.attr}` of {base.what.value}")

    def _meter_of(self, node: ast.expr) -> Kind | None:
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

    # -- calls -----------------------------------------------------------------------------------------------------

    def _of_Call(self, node: ast.Call) -> Kind:  # noqa: N802
        self._check_random(node)
        path = self.names.qualified(node.func)
        if path is not None:
            return self._library_call(path, node)
        roles = self.resolver.roles(node.func)
        if any(isinstance(r, (Wrapped, Module)) for r in roles):
            return self._model_call(node, roles)
        criteria = [r for r in roles if isinstance(r, Criterion)]
        if criteria:
            return self._loss(node, [(c.path, c.site) for c in criteria])
        meter = self._meter_of(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if meter is not None:
            return self._meter_call(node, node.func, meter)  # type: ignore[arg-type]
        if any(isinstance(r, Function) and r.owner is not None and is_meter(r.owner) for r in roles):
            return self._unknown_call(node)  # a meter that others see, too
        if any(isinstance(r, Function) for r in roles) or self.resolver.functions_called(node):
            return self._own_function(node)
        if isinstance(node.func, ast.Attribute):
            return self._method_call(node, node.func)
        return self._unknown_call(node)

    def _arguments(self, node: ast.Call) -> list[Kind]:
        return [self.kind(a.value if isinstance(a, ast.Starred) else a) for a in node.args]

    def _check_random(self, node: ast.Call) -> None:
        if self.frame.forward or (self.frame.loop is None and not self.frame.inside_loop):
            return
        path = self.names.qualified(node.func) or ""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else path.rsplit(".", 1)[-1]
        random = path.startswith(_RANDOM_ROOTS) or (
            name in _RANDOM_NAMES and (path.startswith("torch.") or (not path and isinstance(node.func, ast.Attribute)))
        )
        if random and not name.startswith(("seed", "get_state", "set_state", "manual_seed")):
            raise self.frame.fail("the loop draws random numbers, which must not be the same for every shard", node)

    def _library_call(self, path: str, node: ast.Call) -> Kind:
        if losses.is_loss_function(path):
            return self._loss(node, [(path, node)])
        name = path.rsplit(".", 1)[-1]
        if path == "builtins.len" and len(node.args) == 1:
            return self._length(self.kind(node.args[0]))
        if path == "builtins.isinstance" and node.args:
            self.kind(node.args[0])
            return CLEAN
        if path in _KEEP and node.args:
            kind = self._arguments(node)[0]
            return kind.without_grad() if path == "builtins.float" else kind
        if path == "builtins.int" and node.args:
            kind = self.kind(node.args[0])
            if kind.adds_up or kind.clean:
                return kind
        if (path in ("torch.zeros", "torch.tensor") and self._arguments(node) == [ZERO]) or path == "torch.zeros":
            return ZERO if all(k.clean for k in self._arguments(node)) else self._unknown_call(node)
        if path.startswith("torch.autograd.") and name in ("grad", "backward"):
            raise self.frame.fail(f"`{path}` takes gradients past the wrapped model", node)
        if path.startswith(("torch.", "torch.nn.functional.")) and tensor_ops.knows(name) and path.count(".") in (1, 3):
            arguments = self._arguments(node)
            if not all(a.clean for a in arguments):
                return tensor_ops.function(name, node, arguments)
        return self._unknown_call(node)

    def _length(self, kind: Kind) -> Kind:
        if kind.clean or kind.what in (What.GROUP, What.LIST):
            return CLEAN
        if kind.what is What.ROWS and not kind.container and not kind.output and kind.dim in (0, None):
            return tensor_ops.size_along(kind, 0)
        raise Unprovable(f"the length of {kind.what.value}")

    def _loss(self, node: ast.Call, known: list[tuple[str, ast.Call]]) -> Kind:
        arguments = self._arguments(node) + [self.kind(k.value) for k in node.keywords]
        shard = [a for a in arguments if not a.clean]
        if not shard:
            return CLEAN
        if any(a.what is not What.ROWS or a.container or a.dim != 0 for a in shard):
            raise self.frame.fail("a loss is computed of something else than outputs and targets", node)
        over, grad = shard[0].over, any(a.grad for a in shard) and self.frame.grad_enabled
        reductions = {_reduction(site) for _, site in known}
        if reductions == {"none"}:
            return kinds.rows(over, grad=grad)
        what = What.SUM if reductions == {"sum"} else What.MEAN
        for path, site in known:
            reason = losses.why_no_mean(path, _as_mean(site) if what is What.SUM else site)
            if reason is not None:
                raise self.frame.fail(reason, node)
        return Kind(what, over, grad)

    def _model_call(self, node: ast.Call, roles: frozenset[object]) -> Kind:
        arguments = self._arguments(node) + [self.kind(k.value) for k in node.keywords]
        shard = [a for a in arguments if not a.clean]
        if self.frame.forward:
            return kinds.rows(shard[0].over, grad=True, wide=True) if shard else CLEAN
        if not shard:
            if (
                self.frame.loop is not None
                and self.frame.grad_enabled
                and self.frame.context.loops.trains(self.frame.loop)
            ):
                raise self.frame.fail("the model is called with something else than the batch", node)
            return CLEAN
        if any(a.what is not What.ROWS or a.dim not in (0,) for a in shard):
            raise self.frame.fail("the model is called with something else than rows of the batch", node)
        self._check_wrap(node, roles)
        return self._outputs(node, roles, shard)

    def _check_wrap(self, node: ast.Call, roles: frozenset[object]) -> None:
        for role in roles:
            if isinstance(role, Wrapped):
                dim = next((k.value for k in role.site.keywords if k.arg == "dim"), None)
                if dim is None and len(role.site.args) > 3:
                    dim = role.site.args[3]
                if dim is not None and not (isinstance(dim, ast.Constant) and dim.value == 0):
                    raise self.frame.fail("the model is split along another dimension than the first", node)
        loop = self.frame.loop
        trains = loop is None or self.frame.context.loops.trains(loop)
        if not any(isinstance(r, Wrapped) for r in roles) and self.frame.grad_enabled and trains:
            raise self.frame.fail("a model is trained past its wrap", node)

    def _outputs(self, node: ast.Call, roles: frozenset[object], shard: list[Kind]) -> Kind:
        """What the model returns: rows, or a tuple of rows; a loss of its own ends the proof."""
        modules = {r for role in roles for r in (self.resolver.inner(role) if isinstance(role, Wrapped) else (role,))}
        over = shard[0].over
        one = Kind(What.ROWS, over, grad=self.frame.grad_enabled, wide=True, output=True)
        known = [m.definition for m in modules if isinstance(m, Module) and m.definition is not None]
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
            if isinstance(statement, ast.Return) and statement.value is not None:
                values = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
                counts.add(len(values) if isinstance(statement.value, ast.Tuple) else None)
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

    def _own_function(self, node: ast.Call) -> Kind:
        from dp2ddp.analysis.proof import Frame

        given = self._arguments(node)
        named = {k.arg: self.kind(k.value) for k in node.keywords}
        if all(k.clean for k in (*given, *named.values())):
            self._check_random_inside(node)
            return CLEAN
        found: Kind | None = None
        for function in self.resolver.functions_called(node):
            if self.frame.loop is None and not self.frame.inside_loop:
                return self._unknown_call(node)
            if any(isinstance(a, ast.Starred) for a in node.args) or None in named:
                raise self.frame.fail("a value of the shard is handed on in `*` or `**`", node)
            if getattr(function.definition, "name", "") == "__init__":
                return self._unknown_call(node)
            callee = Frame(self.frame.context, function.definition, self._bound(function, given, named))
            callee.recording = self.frame.recording
            callee.grad_enabled = callee.grad_enabled and self.frame.grad_enabled
            callee.loop = None
            before = dict(self.frame.context.by_function.get(function.definition, {}))
            kind = self._run(callee, node, before)
            found = kinds.join(found, kind) if found is not None else kind
        return found or CLEAN

    def _run(self, callee: Frame, node: ast.Call, before: dict[ast.AST, Reduction]) -> Kind:
        depth = getattr(self.frame, "depth", 0) + 1
        if depth > 8:
            raise self.frame.fail("functions call each other too deeply to follow", node)
        callee.depth = depth  # type: ignore[attr-defined]
        kind = callee.run()
        assert isinstance(callee.root, FUNCTIONS)
        after = self.frame.context.by_function.get(callee.root, {})
        if before and self.frame.recording and after != before:
            raise self.frame.fail("a function is called from loops that need different reductions in it", node)
        return kind

    def _bound(self, function: Function, given: list[Kind], named: dict[str | None, Kind]) -> dict[str, Kind]:
        parameters = [a.arg for a in (*function.definition.args.posonlyargs, *function.definition.args.args)]
        if function.owner is not None and parameters:
            parameters = parameters[1:]
        bound = dict(zip(parameters, given))
        bound.update({name: kind for name, kind in named.items() if name is not None})
        return bound

    def _check_random_inside(self, node: ast.Call) -> None:
        if self.frame.loop is None and not self.frame.inside_loop:
            return
        for function in self.resolver.functions_called(node):
            for inner in self.frame.context.loops.reached(function.definition):
                if isinstance(inner, ast.Call) and not self._in_data_loop(inner):
                    self._check_random(inner)

    def _in_data_loop(self, node: ast.AST) -> bool:
        loops = self.frame.context.loops_by_node
        return any(above in loops for above in self.frame.context.source.ancestors(node))

    def _method_call(self, node: ast.Call, func: ast.Attribute) -> Kind:
        receiver = self.kind(func.value)
        if receiver.clean:
            if func.attr == "scale" and self.resolver.holds(func.value, Scaler) and len(node.args) == 1:
                return self.kind(node.args[0])
            return self._unknown_call(node)
        if receiver.what is What.LIST:
            return self._list_call(node, func, receiver)
        arguments = self._arguments(node)
        if func.attr == "backward":
            return self._backward(node, receiver)
        for given in node.keywords:
            self.clean(given.value)
        return tensor_ops.method(func.attr, receiver, node, arguments)

    def _backward(self, node: ast.Call, receiver: Kind) -> Kind:
        if receiver.what is not What.MEAN:
            raise self.frame.fail(f"`backward()` is called on a value that is {receiver.what.value}", node)
        for argument in node.args:
            self.clean(argument)
        return CLEAN

    def _list_call(self, node: ast.Call, func: ast.Attribute, receiver: Kind) -> Kind:
        if func.attr != "append" or len(node.args) != 1 or not isinstance(func.value, ast.Name):
            raise Unprovable(f"`.{func.attr}()` of {receiver.what.value}")
        element = self.kind(node.args[0])
        joined = kinds.join(receiver.parts[0] if receiver.parts else None, element)
        self.frame.env[func.value.id] = Kind(What.LIST, joined.over, parts=(joined,))
        return CLEAN

    def _meter_call(self, node: ast.Call, func: ast.Attribute, meter: Kind) -> Kind:
        assert isinstance(func.value, ast.Name)
        arguments = self._arguments(node)
        if func.attr == "reset" and not arguments:
            return CLEAN
        if func.attr != "update" or node.keywords:
            raise Unprovable("a meter is used in a way that is not known")
        if len(arguments) == 2 and arguments[0].what is What.MEAN and arguments[1].what is What.COUNT:
            self.frame.env[func.value.id] = Kind(What.METER, arguments[0].over)
            return CLEAN
        if all(a.clean for a in arguments) and not meter.over:
            return CLEAN
        if meter.over:
            raise Unprovable("a meter takes values of different kinds")
        for argument, kind in zip(node.args, arguments):
            self.reduce(argument, kind)
        self.frame.env[func.value.id] = CLEAN
        return CLEAN

    def _unknown_call(self, node: ast.Call) -> Kind:
        """A call that isn't understood gets whole-batch values, and gives back what is the same on all ranks."""
        if isinstance(node.func, ast.Attribute):
            self.clean(node.func.value)
        for argument in node.args:
            self.clean(argument.value if isinstance(argument, ast.Starred) else argument)
        for given in node.keywords:
            self.clean(given.value)
        return CLEAN


def _is_number(kind: Kind) -> bool:
    return kind.clean or kind.adds_up or kind.what is What.MEAN


def _binds(node: ast.Assign, name: str) -> bool:
    return any(isinstance(t, ast.Name) and t.id == name for t in node.targets)


def _reduction(site: ast.Call) -> str:
    given = next((k.value for k in site.keywords if k.arg == "reduction"), None)
    if isinstance(given, ast.Constant):
        return str(given.value)
    averaged = next((k.value for k in site.keywords if k.arg == "size_average"), None)
    return "sum" if isinstance(averaged, ast.Constant) and averaged.value is False else "mean"


def _as_mean(site: ast.Call) -> ast.Call:
    """The call without its reduction, to check its other arguments."""
    kept = [k for k in site.keywords if k.arg not in ("reduction", "size_average")]
    return ast.Call(func=site.func, args=site.args, keywords=kept)
