"""Where models are wrapped in `nn.DataParallel`, how the call is used, and which guards stand around it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from dp2ddp.analysis.control.reached import Running
from dp2ddp.analysis.roles import Class, Resolver, WrappedOptimizer, Wrapper
from dp2ddp.analysis.wraps.bypassed import are_bypassed, is_taken_off
from dp2ddp.analysis.wraps.written_out import WrittenOut, written_out
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import argument
from dp2ddp.source.program import FUNCTIONS, ParsedProgram

_KNOWN = frozenset({"torch", "dp2ddp_runtime"})
# What replaces DataParallel is the script's own business; what describes it wraps nothing.
_SOMETHING_ELSE = re.compile("Distributed|Sharded|Config|Kwargs")
# `DataParallelWithCallback` and the like tell their replicas of each other.
_SYNC_HINT = " (if that is for synchronised BatchNorm: plain `nn.DataParallel` and --sync-bn give it over processes)"
# What a class derived from `DataParallel` may not define, as the conversion does these things in its own way; and what
# it may although it begins with an underscore.
_INNER = frozenset(
    "forward scatter gather replicate parallel_apply train eval to cuda cpu float double half no_sync join module "
    "parameters named_parameters buffers named_buffers modules named_modules".split()
)
_OUTER = frozenset({"__init__", "__getattr__", "__repr__", "__str__", "__len__", "__getitem__", "__iter__"})


@dataclass(frozen=True)
class Wrap:
    """One `nn.DataParallel(model, ...)`.

    Attributes:
        call: the call itself.
        model: the model that is wrapped.
        dim: the dimension along which the batch is split, None for the first.
        device_ids: as given, None for all devices.
    """

    call: ast.Call
    model: ast.expr | None
    dim: ast.expr | None
    device_ids: ast.expr | None


@dataclass(frozen=True)
class Changed:
    """A class that changes how `DataParallel` works: where it names it, and why it can't be converted."""

    base: ast.expr
    why: str


class Wraps:
    """Finds every use of `DataParallel` in what a script can run."""

    def __init__(self, source: ParsedProgram, names: Names, resolver: Resolver, running: Running) -> None:
        self.source = source
        self.names = names
        self.resolver = resolver
        self.running = running
        self.idle: list[ast.expr] = []  # wraps in what no script comes to
        self.models: list[Wrap] = []
        self.optimizers: list[ast.Call] = []
        self.type_checks: list[ast.expr] = []  # `DataParallel` named to ask for a type, or to tell one
        self.values: list[ast.expr] = []  # `DataParallel` handed on, derived from, or called with what isn't known
        self.refused: list[tuple[ast.AST, str]] = []  # uses of `DataParallel` that can't be converted, and why
        self.changed: dict[ast.ClassDef, Changed] = {}  # classes that derive from it, and change how it works
        self.functional: list[ast.Call] = []  # what gives the outputs of a model that is split for one call
        self.written_out: dict[ast.Call, WrittenOut] = {}  # by those of them that are `gather`
        self._find()

    def _find(self) -> None:
        called = set()
        for call in self.source.calls:
            path = self.names.qualified(call.func)
            if path == "torch.nn.DataParallel":
                called.add(call.func)
                if not self.running.runs(call):
                    self.idle.append(call)
                elif any(isinstance(r, WrappedOptimizer) for r in self.resolver.roles(call)):
                    self.optimizers.append(call)
                elif argument(call, 0, "module") is None or any(k.arg is None for k in call.keywords):
                    self.values.append(call.func)  # `DataParallel(*args)`, `DataParallel(net, **options)`
                else:
                    self.models.append(self._wrap(call))
            elif path is None or not self.running.runs(call):
                continue
            elif path == "torch.nn.parallel.data_parallel":
                self._apply(call)
            elif (found := written_out(self.source, self.names, call)) is not None:
                self.functional.append(call)
                self.written_out[call] = found
            elif _is_foreign(path):
                module, _, name = path.rpartition(".")
                hint = _SYNC_HINT if "Callback" in name else ""
                self.refused.append((call.func, f"`{name}` comes from `{module}`, no part of this program{hint}"))
        # (`getattr(nn, "DataParallel")` names it, too.)
        kinds = (ast.Name, ast.Attribute, ast.Call)
        named = [n for n in self.source.nodes if isinstance(n, kinds) and n not in called]
        for node in named:
            if self.names.qualified(node) == "torch.nn.DataParallel" and self.running.runs(node):
                self._reference(node)

    @cached_property
    def on_one_device(self) -> bool:
        """Whether no wrap works on several devices."""
        return self.are_on_one_device(lambda node: True)

    def are_on_one_device(self, is_met: Callable[[ast.AST], bool]) -> bool:
        """Whether there are wraps in the code that `is_met` says, and none of them works on several devices.

        It is written for one, or the script only calls the model inside: one process does the same.
        """
        models = [wrap for wrap in self.models if is_met(wrap.call)]
        if not models or any(map(is_met, (*self.functional, *self.values, *self.optimizers))):
            return False
        if all(_is_one(wrap.device_ids) or wrap.call in self.taken_off for wrap in models):
            return True
        nodes = (node for node in self.source.nodes if isinstance(node, ast.expr) and is_met(node))
        return are_bypassed(self.source, self.names, self.resolver, nodes)

    @cached_property
    def taken_off(self) -> frozenset[ast.Call]:
        """The wraps that only serve a checkpoint's keys: no reason for several processes."""
        return frozenset(wrap.call for wrap in self.models if is_taken_off(self.source, wrap.call))

    @property
    def found(self) -> bool:
        """Whether there is any use of `DataParallel` that can be converted."""
        return not self.on_one_device and any(
            (self.models, self.optimizers, self.functional, self.values, self.type_checks)
        )

    @cached_property
    def device_ids(self) -> list[tuple[ast.expr, ast.Call]]:
        """The `device_ids` that models are wrapped with, and the calls that give them."""
        direct = [(wrap.device_ids, wrap.call) for wrap in self.models if wrap.device_ids is not None]
        known = {wrap.call for wrap in self.models}
        others = [(call, 1) for call in self.source.calls if call not in known and self._hands_device_ids(call)]
        others += [(call, 2) for call in self.functional if call not in self.written_out]
        found = [(argument(call, place, "device_ids"), call) for call, place in others]
        found += [(call.args[2], call) for call in self.functional if starred_inputs(call) is not None]
        return direct + [(given, call) for given, call in found if given is not None]

    @cached_property
    def device_ids_written(self) -> frozenset[str]:
        """The `device_ids` that models are wrapped with, as text."""
        return frozenset(ast.unparse(given) for given, _ in self.device_ids)

    def _hands_device_ids(self, call: ast.Call) -> bool:
        """Whether a call wraps a model by another name than `DataParallel`, or prepares that."""
        if self.names.qualified(call.func) == "functools.partial":
            return bool(call.args) and self.resolver.holds(call.args[0], Wrapper)
        classes = (role.definition for role in self.resolver.roles(call.func) if isinstance(role, Class))
        hands = self.resolver.holds(call.func, Wrapper) or any(map(self._is_wrapper, classes))
        return hands and self.running.runs(call)

    def _is_wrapper(self, definition: ast.ClassDef) -> bool:
        lineage = self.resolver.classes.lineage(definition)
        return self.resolver.classes.is_wrapper(definition) and self.changed.keys().isdisjoint(lineage)

    def _reference(self, node: ast.expr) -> None:
        """Sort a use of `DataParallel` that is no call."""
        above = self.source.parent(node)
        if asks_for_type(self.source, self.names, node):
            self.type_checks.append(node)
        elif isinstance(above, ast.Attribute):
            self.refused.append((node, f"`{self.source.brief(above)}` reaches into `DataParallel`"))
        elif isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            self.refused.append((node, "`DataParallel` itself is exchanged"))
        elif isinstance(above, ast.ClassDef):
            for definition in (above, *self.resolver.classes.derived(above)):
                why = self._why_not_derived(definition)
                if why:
                    self.changed[definition] = Changed(node if definition is above else definition.bases[0], why)
            if above not in self.changed:
                self.values.append(node)
        else:
            self.values.append(node)

    def _why_not_derived(self, definition: ast.ClassDef) -> str:
        """Why a class that derives from `DataParallel` can't derive from `ddp.WrappedModel`; empty where it can."""
        if len(definition.bases) > 1 or definition.keywords:
            return f"`{definition.name}` derives from more than `DataParallel`"
        methods = (item.name for item in definition.body if isinstance(item, FUNCTIONS))
        changed = next((name for name in methods if name in _INNER or (name[0] == "_" and name not in _OUTER)), None)
        hint = _SYNC_HINT if changed == "replicate" else ""
        return f"`{definition.name}` changes how `DataParallel` works (`{changed}`){hint}" if changed else ""

    def _apply(self, call: ast.Call) -> None:
        """A call of `data_parallel`."""
        starred = any(isinstance(each, ast.Starred) for each in call.args) or any(k.arg is None for k in call.keywords)
        if starred and starred_inputs(call) is None:
            self.refused.append((call, f"what `{self.source.brief(call)}` is given can't be told apart"))
        self.functional.append(call)

    def _wrap(self, call: ast.Call) -> Wrap:
        model, device_ids, dim = argument(call, 0, "module"), argument(call, 1, "device_ids"), argument(call, 3, "dim")
        return Wrap(call, model, dim, device_ids)


def starred_inputs(call: ast.Call) -> ast.expr | None:
    """`xs` of `data_parallel(net, *xs, ids)`, where it must be one; None for another call."""
    if len(call.args) != 3 or [isinstance(each, ast.Starred) for each in call.args] != [False, True, False]:
        return None
    inputs = call.args[1]
    return inputs.value if isinstance(inputs, ast.Starred) and not call.keywords else None


def _is_one(ids: ast.expr | None) -> bool:
    """Whether `device_ids` are one device, as it is written there: `[0]`, `[args.gpu]`, `"cuda:0"`."""
    if isinstance(ids, (ast.List, ast.Tuple)):
        return len(ids.elts) == 1 and not isinstance(ids.elts[0], ast.Starred)
    return isinstance(ids, ast.Constant) and re.fullmatch(r"(cuda:)?\d+", str(ids.value)) is not None


def _is_foreign(path: str) -> bool:
    """Whether a dotted path names what another library has in `DataParallel`'s place."""
    library, name = path.split(".")[0], path.split(".")[-1]
    return library not in _KNOWN and "DataParallel" in name and not _SOMETHING_ELSE.search(name)


def asks_for_type(source: ParsedProgram, names: Names, reference: ast.expr) -> bool:
    """Whether `DataParallel` is named to check a type (in `isinstance(...)`, beside `type(...)`) or to annotate one."""
    node: ast.AST = reference
    for above in source.ancestors(reference):
        if isinstance(above, ast.Call):
            return names.qualified(above.func) in ("builtins.isinstance", "builtins.issubclass")
        if isinstance(above, (ast.Compare, ast.arg)):
            return True
        if isinstance(above, ast.AnnAssign):
            return node is above.annotation
        if isinstance(above, FUNCTIONS):
            return node is above.returns
        if isinstance(above, ast.stmt):
            return False
        node = above
    return False
