"""Where models are wrapped in `nn.DataParallel`, how the call is used, and which guards stand around it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from dp2ddp.analysis.names import Names
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
        guard: the outermost `if` that asks for devices and around which the wrap must not depend, None without.
        condition: an `if` that can skip the wrap for another reason, None without.
        problem: why it can't be converted, empty when it can.
    """

    call: ast.Call
    outer: ast.expr
    model: ast.expr | None
    dim: ast.expr | None
    device_ids: ast.expr | None
    statement: ast.stmt
    guard: ast.If | None
    condition: ast.If | None
    problem: str = ""


class Wraps:
    """Finds every use of `DataParallel` in a script."""

    def __init__(self, source: Source, names: Names, resolver: Resolver) -> None:
        self.source = source
        self.names = names
        self.resolver = resolver
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
        guard, condition = self._guards(statement)
        outer = self._outer(call)
        return Wrap(
            call,
            outer,
            argument(call, 0, "module"),
            argument(call, 3, "dim"),
            argument(call, 1, "device_ids"),
            statement,
            guard,
            condition,
            self._problem(call, statement, outer),
        )

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

    def _guards(self, statement: ast.stmt) -> tuple[ast.If | None, ast.If | None]:
        guard: ast.If | None = None
        condition: ast.If | None = None
        for above in self.source.ancestors(statement):
            if isinstance(above, (*FUNCTIONS, ast.Module)) or is_main_guard(above):
                break
            if isinstance(above, (ast.For, ast.While, ast.With, ast.Try)) and guard is not None:
                break
            if not isinstance(above, ast.If):
                continue
            if self._is_device_guard(above) and condition is None:
                guard = above
            elif condition is None:
                condition = self.source.chain_head(above)
        # The wrap moves behind a whole `if`, never behind one branch of it.
        if guard is not None and self.source.chain_head(guard) is not guard:
            guard = None
        return guard, condition

    def _is_device_guard(self, node: ast.If) -> bool:
        return bool(_DEVICE_GUARD.search(ast.unparse(node.test)))

    def _problem(self, call: ast.Call, statement: ast.stmt, outer: ast.expr) -> str:
        if argument(call, 0, "module") is None:
            return "the model that is wrapped is not given directly"
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and statement.value is outer:
            target = statement.targets[0]
            if isinstance(target, ast.Attribute) and self._is_module_part(target):
                return "a part of a model is wrapped, and DistributedDataParallel has to wrap the whole"
        for above in self.source.ancestors(call):
            if isinstance(above, (ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.SetComp, ast.Lambda)):
                return "the wrap stands in a comprehension or lambda"
            if isinstance(above, ast.stmt):
                break
        return ""

    def _is_module_part(self, target: ast.Attribute) -> bool:
        from dp2ddp.analysis.roles import Module, Wrapped

        return self.resolver.holds(target.value, Module, Wrapped)


def _bare(model: ast.expr) -> ast.expr:
    while isinstance(model, ast.Call) and isinstance(model.func, ast.Attribute) and model.func.attr in _MOVES:
        model = model.func.value
    return model
