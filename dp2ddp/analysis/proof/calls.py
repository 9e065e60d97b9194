"""Calls in the sharding proof: losses, models, tensor operations, the script's own functions, and the unknown."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from dp2ddp.analysis.loops import local_names
from dp2ddp.analysis.proof import kinds, losses, tensor_ops
from dp2ddp.analysis.proof.kinds import CLEAN, ZERO, Kind, Unprovable, What
from dp2ddp.analysis.proof.meters import is_meter
from dp2ddp.analysis.proof.models import Models
from dp2ddp.analysis.proof.result import Reduction
from dp2ddp.analysis.roles import Criterion, Function, Module, Role, Scaler, Wrapped
from dp2ddp.analysis.source import FUNCTIONS, FunctionNode, in_order

if TYPE_CHECKING:
    from dp2ddp.analysis.proof.expressions import Evaluator
    from dp2ddp.analysis.proof.frame import Frame

_RANDOM_ROOTS = ("random.", "numpy.random.")
_RANDOM_NAMES = frozenset(
    "rand randn randint randperm rand_like randn_like randint_like normal bernoulli multinomial poisson "
    "normal_ uniform_ random_ bernoulli_ exponential_ geometric_ log_normal_ cauchy_ rsample sample".split()
)
_KEEP = frozenset({"builtins.float", "torch.autograd.Variable", "torch.as_tensor", "numpy.asarray", "numpy.array"})


_IGNORING = ("CrossEntropyLoss", "NLLLoss", ".cross_entropy", ".nll_loss")
_DEEPEST = 8


class Calls:
    """Computes the kinds of calls for one frame."""

    def __init__(self, frame: Frame, values: Evaluator) -> None:
        self.frame = frame
        self.values = values
        self.names = frame.context.names
        self.resolver = frame.context.resolver
        self.models = Models(frame)

    def kind(self, node: ast.Call) -> Kind:
        """The kind of what a call gives back."""
        self._check_random(node)
        path = self.names.qualified(node.func)
        if path is not None:
            return self._library_call(path, node)
        roles = self.resolver.roles(node.func)
        if any(isinstance(r, (Wrapped, Module)) for r in roles):
            return self._model_call(node, roles)
        criteria = sorted((r for r in roles if isinstance(r, Criterion)), key=lambda r: r.site.lineno)
        if criteria:
            stranger = self.frame.context.origins.stranger(node.func)
            if stranger is not None:
                place = self.frame.context.source.where(stranger)
                raise self.frame.fail(f"the loss can also be what {place} makes it, which is not known", node)
            return self._loss(node, [(c.path, c.site) for c in criteria])
        meter = self.values.meter_of(node.func.value) if isinstance(node.func, ast.Attribute) else None
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
        return [self.values.kind(a.value if isinstance(a, ast.Starred) else a) for a in node.args]

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
            return self._length(self.values.kind(node.args[0]))
        if path == "builtins.isinstance" and node.args:
            self.values.kind(node.args[0])
            return CLEAN
        if path in _KEEP and node.args:
            kind = self._arguments(node)[0]
            return kind.without_grad() if path == "builtins.float" else kind
        if path == "builtins.int" and node.args:
            kind = self.values.kind(node.args[0])
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
        arguments = self._arguments(node) + [self.values.kind(k.value) for k in node.keywords]
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
        texts = [file.text for file in self.frame.context.source.files]
        may_ignore = any(re.search(r"-\s*100\b|ignore_index|IGNORE", text) for text in texts)
        if may_ignore and any(path.endswith(_IGNORING) for path, _ in known):
            raise self.frame.fail("targets may be ignored (-100), so shards may count differently many", node)
        return Kind(what, over, grad)

    def _model_call(self, node: ast.Call, roles: frozenset[Role]) -> Kind:
        arguments = self._arguments(node) + [self.values.kind(k.value) for k in node.keywords]
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
        return self.models.outputs(node, roles, shard)

    def _check_wrap(self, node: ast.Call, roles: frozenset[Role]) -> None:
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
            known = in_order(r.definition for r in roles if isinstance(r, Module) and r.definition is not None)
            if known:
                raise self.frame.fail(f"`{known[0].name}` is not known to treat each sample alone", node)
            raise self.frame.fail("a model is trained past its wrap", node)

    def _own_function(self, node: ast.Call) -> Kind:
        given = self._arguments(node)
        named = {k.arg: self.values.kind(k.value) for k in node.keywords}
        self._check_hidden(node)
        if all(k.clean for k in (*given, *named.values())):
            self._check_unseen(node)
            return CLEAN
        found: Kind | None = None
        for function in self.resolver.functions_called(node):
            if self.frame.loop is None and not self.frame.inside_loop:
                return self._unknown_call(node)
            if any(isinstance(a, ast.Starred) for a in node.args) or None in named:
                raise self.frame.fail("a value of the shard is handed on in `*` or `**`", node)
            if getattr(function.definition, "name", "") == "__init__":
                return self._unknown_call(node)
            callee = self.frame.callee(function.definition, self._bound(function, given, named))
            before = dict(self.frame.context.by_function.get(function.definition, {}))
            kind = self._run(callee, node, before)
            found = kinds.join(found, kind) if found is not None else kind
        return found or CLEAN

    def _run(self, callee: Frame, node: ast.Call, before: dict[ast.AST, Reduction]) -> Kind:
        if callee.depth > _DEEPEST:
            raise self.frame.fail("functions call each other too deeply to follow", node)
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

    def _check_hidden(self, node: ast.Call) -> None:
        """Fail where a function reads values of the shard past its arguments: globals, or an enclosing function's."""
        hidden = {name for name, kind in self.frame.env.items() if kind is not None and not kind.clean and kind.over}
        for function in self.resolver.functions_called(node):
            for one in self.frame.context.loops.functions_reached(function.definition):
                read = {n.id for n in ast.walk(one) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
                seen = (read - local_names(one)) & hidden if self._sees(one) else set()
                if seen:
                    raise self.frame.fail(f"`{one.name}` uses `{min(seen)}` of the loop without being given it", node)

    def _sees(self, function: FunctionNode) -> bool:
        """Whether a function's free names can be this frame's: it is the module's, or the function stands in it."""
        root = self.frame.root
        return any(above is root for above in self.frame.context.source.ancestors(function))

    def _check_unseen(self, node: ast.Call) -> None:
        """Fail where a function that isn't followed, because it gets nothing of the shard, trains or draws."""
        if self.frame.loop is None and not self.frame.inside_loop:
            return
        for function in self.resolver.functions_called(node):
            for inner in self.frame.context.loops.reached(function.definition):
                if isinstance(inner, ast.Call) and not self._in_data_loop(inner):
                    self._check_random(inner)
                    if isinstance(inner.func, ast.Attribute) and inner.func.attr == "backward":
                        raise self.frame.fail("a function trains on something else than what the loop gives it", node)

    def _in_data_loop(self, node: ast.AST) -> bool:
        loops = self.frame.context.loops_by_node
        return any(above in loops for above in self.frame.context.source.ancestors(node))

    def _method_call(self, node: ast.Call, func: ast.Attribute) -> Kind:
        receiver = self.values.kind(func.value)
        if receiver.clean:
            if func.attr == "scale" and self.resolver.holds(func.value, Scaler) and len(node.args) == 1:
                return self.values.kind(node.args[0])
            return self._unknown_call(node)
        if receiver.what is What.LIST:
            return self._list_call(node, func, receiver)
        arguments = self._arguments(node)
        if func.attr == "backward":
            return self._backward(node, receiver)
        for given in node.keywords:
            self.values.clean(given.value)
        return tensor_ops.method(func.attr, receiver, node, arguments)

    def _backward(self, node: ast.Call, receiver: Kind) -> Kind:
        if receiver.what is not What.MEAN:
            raise self.frame.fail(f"`backward()` is called on a value that is {receiver.what.value}", node)
        for argument in node.args:
            self.values.clean(argument)
        return CLEAN

    def _list_call(self, node: ast.Call, func: ast.Attribute, receiver: Kind) -> Kind:
        if func.attr != "append" or len(node.args) != 1 or not isinstance(func.value, ast.Name):
            raise Unprovable(f"`.{func.attr}()` of {receiver.what.value}")
        element = self.values.kind(node.args[0])
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
            self.values.reduce(argument, kind)
        self.frame.env[func.value.id] = CLEAN
        return CLEAN

    def _unknown_call(self, node: ast.Call) -> Kind:
        """A call that isn't understood gets whole-batch values, and gives back what is the same on all ranks."""
        if isinstance(node.func, ast.Attribute):
            self.values.clean(node.func.value)
        for argument in node.args:
            self.values.clean(argument.value if isinstance(argument, ast.Starred) else argument)
        for given in node.keywords:
            self.values.clean(given.value)
        return CLEAN


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
