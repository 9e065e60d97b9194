"""Where models are wrapped in `nn.DataParallel`, how the call is used, and which guards stand around it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace

from dp2ddp.analysis.names import Names
from dp2ddp.analysis.parts import Part, Parts
from dp2ddp.analysis.paths import Detour, Paths
from dp2ddp.analysis.roles import Resolver, WrappedOptimizer
from dp2ddp.analysis.source import FUNCTIONS, Source, argument, is_main_guard, same

# A test that asks for devices, or for the wish to use several: the wrap must not depend on it.
_DEVICE_GUARD = re.compile(r"cuda|gpu|device|parallel|multi|dist\b", re.IGNORECASE)
_MOVES = frozenset({"cuda", "to"})


@dataclass(frozen=True)
class Wrap:
    """One `nn.DataParallel(model, ...)`.

    Attributes:
        call: the call itself.
        outer: the expression that the wrapped model replaces: the call with `.cuda()` or `.to(device)` behind it, or a
            conditional expression around it.
        model: the model that is wrapped.
        dim: the dimension along which the batch is split, None for the first.
        device_ids: as given, None for all devices.
        statement: the statement that it stands in.
        guard: the outermost `if` that asks for devices, behind which the wrap moves, None without.
        part: what makes it the wrap of a part of a model, None where a whole model is wrapped.
        detour: the way around the wrap that stays, None where it is on every path.
        problem: why it can't be converted, empty when it can.
    """

    call: ast.Call
    outer: ast.expr
    model: ast.expr | None
    dim: ast.expr | None
    device_ids: ast.expr | None
    statement: ast.stmt
    guard: ast.If | None
    part: Part | None = None
    detour: Detour | None = None
    problem: str = ""

    @property
    def target(self) -> ast.expr | None:
        """What the wrapped model is assigned to, None where it isn't simply assigned."""
        statement = self.statement
        simple = isinstance(statement, ast.Assign) and len(statement.targets) == 1 and statement.value is self.outer
        return statement.targets[0] if simple else None  # type: ignore[attr-defined]


class Wraps:
    """Finds every use of `DataParallel` in a script."""

    def __init__(self, source: Source, names: Names, resolver: Resolver) -> None:
        self.source = source
        self.names = names
        self.resolver = resolver
        self._parts = Parts(source, names, resolver)
        self._paths = Paths(source, names, resolver)
        self.models: list[Wrap] = []
        self.optimizers: list[ast.Call] = []
        self.references: list[ast.expr] = []  # `DataParallel` named without being called: isinstance, base classes
        self.functional: list[ast.Call] = []
        self._find()

    def _find(self) -> None:
        called = set()
        for call in self.source.calls:
            path = self.names.qualified(call.func)
            if path == "torch.nn.DataParallel":
                called.add(call.func)
                if any(isinstance(r, WrappedOptimizer) for r in self.resolver.roles(call)):
                    self.optimizers.append(call)
                else:
                    self.models.append(self._wrap(call))
            elif path == "torch.nn.parallel.data_parallel":
                self.functional.append(call)
        named = (n for n in self.source.nodes if isinstance(n, (ast.Name, ast.Attribute)) and n not in called)
        self.references = [n for n in named if self.names.qualified(n) == "torch.nn.DataParallel"]

    def _wrap(self, call: ast.Call) -> Wrap:
        statement = self.source.statement(call)
        outer, model = self._outer(call), argument(call, 0, "module")
        wrap = Wrap(
            call,
            outer,
            model,
            argument(call, 3, "dim"),
            argument(call, 1, "device_ids"),
            statement,
            self._guard(statement),
            self._parts.of(call, outer),
            problem="" if model is not None else "the model that is wrapped is not given directly",
        )
        if wrap.guard is not None and not self._may_move_behind(wrap, wrap.guard):
            wrap = replace(wrap, guard=None)
        return replace(wrap, detour=self._paths.detour(call, outer, model, wrap.guard))

    def _outer(self, call: ast.Call) -> ast.expr:
        outer: ast.expr = call
        while True:
            above = self.source.parent(outer)
            if isinstance(above, ast.Attribute) and above.attr in _MOVES:
                move = self.source.parent(above)
                if isinstance(move, ast.Call) and move.func is above:
                    outer = move
                    continue
            if isinstance(above, ast.IfExp) and self._falls_back(above, outer, call):
                outer = above
                continue
            return outer

    def _falls_back(self, choice: ast.IfExp, wrapped: ast.expr, call: ast.Call) -> bool:
        """Whether the other branch is the same model unwrapped."""
        other = choice.orelse if choice.body is wrapped else choice.body
        while isinstance(other, ast.Call) and isinstance(other.func, ast.Attribute) and other.func.attr in _MOVES:
            other = other.func.value
        return bool(call.args) and same(other, _bare(call.args[0]))

    def _guard(self, statement: ast.stmt) -> ast.If | None:
        guard: ast.If | None = None
        for above in self.source.ancestors(statement):
            if isinstance(above, (*FUNCTIONS, ast.Module, ast.ClassDef)) or is_main_guard(above):
                break
            if isinstance(above, (ast.For, ast.While, ast.With, ast.Try)) and guard is not None:
                break
            if isinstance(above, ast.If):
                if not self._is_device_guard(above):
                    break  # it may skip the wrap for a reason of its own
                guard = above
        # The wrap moves behind a whole `if`, never behind one branch of it.
        return guard if guard is not None and self.source.chain_head(guard) is guard else None

    def _may_move_behind(self, wrap: Wrap, guard: ast.If) -> bool:
        """Whether wrapping behind the guard wraps the same model, and nothing in the guard needs the wrapped one."""
        target = wrap.target
        if target is None:
            return False
        if any((self.names.qualified(n) or "").endswith(".DistributedDataParallel") for n in ast.walk(guard)):
            return False  # the script's own, on another branch
        after = (n for n in ast.walk(guard) if isinstance(n, ast.Attribute) and n.attr == "module")
        if any(same(n.value, target) for n in after):
            return False
        others = (
            n.value for n in ast.walk(guard) if isinstance(n, ast.Assign) and any(same(t, target) for t in n.targets)
        )
        same_model = (target, wrap.model and _bare(wrap.model))
        return same(target, same_model[1]) or all(any(same(self._core(v), m) for m in same_model) for v in others)

    def _core(self, value: ast.expr) -> ast.expr:
        """The model in `nn.DataParallel(model.cuda()).to(device)`."""
        value = _bare(value)
        while (
            isinstance(value, ast.Call) and value.args and self.names.qualified(value.func) == "torch.nn.DataParallel"
        ):
            value = _bare(value.args[0])
        return value

    def _is_device_guard(self, node: ast.If) -> bool:
        return bool(_DEVICE_GUARD.search(ast.unparse(node.test)))


def _bare(model: ast.expr) -> ast.expr:
    while isinstance(model, ast.Call) and isinstance(model.func, ast.Attribute) and model.func.attr in _MOVES:
        model = model.func.value
    return model
