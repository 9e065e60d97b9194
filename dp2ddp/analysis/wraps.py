"""Where `nn.DataParallel` is used, and what it is used for."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from dp2ddp.analysis.classes import Classes, asks_for_type
from dp2ddp.analysis.written_out import WrittenOut, written_out
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import argument, last_name
from dp2ddp.source.program import FUNCTIONS, ParsedProgram

WRAPPER = "torch.nn.DataParallel"
_KNOWN = frozenset({"torch", "dp2ddp_runtime", "builtins"})
# What replaces DataParallel is the script's own business; what describes it wraps nothing.
_SOMETHING_ELSE = re.compile("Distributed|Sharded|Config|Kwargs")
# `DataParallelWithCallback` and the like tell their replicas of each other.
SYNC_HINT = " (if that is for synchronised BatchNorm: plain `nn.DataParallel` and --sync-bn give it over processes)"
# What a class derived from `DataParallel` may not define, as the runtime does these things in its own way; and what it
# may although it begins with an underscore.
_INNER = frozenset(
    "forward scatter gather parallel_apply train eval to cuda cpu float double half no_sync join module "
    "parameters named_parameters buffers named_buffers modules named_modules".split()
)
_OUTER = frozenset({"__init__", "__getattr__", "__repr__", "__str__", "__len__", "__getitem__", "__iter__"})
#: What tells `torch.load` which classes a checkpoint may name: the original's, so that either script loads them.
_LOADING = frozenset({"add_safe_globals", "safe_globals"})
_OPTIMIZER = re.compile("optim", re.IGNORECASE)


@dataclass(frozen=True)
class Changed:
    """A class that changes how `DataParallel` works: where it names it, and why it can't be converted."""

    base: ast.expr
    why: str


class Wraps:
    """All uses of `DataParallel` in a program.

    Attributes:
        models: calls that wrap a model.
        optimizers: calls that wrap an optimizer, which old scripts do.
        functional: calls that split a model for one call.
        written_out: those of them that are `gather`, at the end of a forward that is written out.
        type_checks: `DataParallel` named to ask for a type, or to tell one.
        values: `DataParallel` handed on, or derived from.
        changed: classes that derive from it, and change how it works.
        refused: uses that can't be converted, and why.
    """

    def __init__(self, source: ParsedProgram, names: Names, classes: Classes) -> None:
        self._source, self._names, self._classes = source, names, classes
        self.models: list[ast.Call] = []
        self.optimizers: list[ast.Call] = []
        self.functional: list[ast.Call] = []
        self.written_out: dict[ast.Call, WrittenOut] = {}
        self.type_checks: list[ast.expr] = []
        self.values: list[ast.expr] = []
        self.changed: dict[ast.ClassDef, Changed] = {}
        self.refused: list[tuple[ast.AST, str]] = []
        called = set()
        for call in source.calls:
            path = names.qualified(call.func)
            if path == WRAPPER:
                called.add(call.func)
                (self.optimizers if self._is_optimizer(argument(call, 0, "module")) else self.models).append(call)
            elif path is not None:
                self._other_call(call, path)
        kinds = (ast.Name, ast.Attribute, ast.Call)  # (`getattr(nn, "DataParallel")` names it, too)
        for node in (n for n in source.nodes if isinstance(n, kinds) and n not in called):
            if names.qualified(node) == WRAPPER:
                self._reference(node)

    @property
    def wrapping(self) -> list[ast.expr]:
        """What wraps: the files in which it stands are what conversions are for."""
        bases = [changed.base for changed in self.changed.values()]
        refused = [node for node, _ in self.refused if isinstance(node, ast.expr)]
        return [*self.models, *self.functional, *self.values, *self.optimizers, *bases, *refused]

    @property
    def several(self) -> list[ast.Call]:
        """Calls that wrap a model, but for those that visibly are for one device."""
        lists = {call: argument(call, 1, "device_ids") for call in self.models}
        parts = {call: ids.elts if isinstance(ids, (ast.List, ast.Tuple)) else [] for call, ids in lists.items()}
        return [call for call, ids in parts.items() if len(ids) != 1 or isinstance(ids[0], ast.Starred)]

    @property
    def targets(self) -> set[str]:
        """The names and attributes to which wrapped models are assigned."""
        statements = (self._source.statement(call) for call in self.models)
        assigned = (target for each in statements if isinstance(each, ast.Assign) for target in each.targets)
        return {last_name(target) for target in assigned} - {""}

    def _is_optimizer(self, wrapped: ast.expr | None) -> bool:
        """Whether it is built by `torch.optim`, or called so."""
        if isinstance(wrapped, ast.Call):
            return (self._names.qualified(wrapped.func) or "").startswith("torch.optim.")
        return wrapped is not None and _OPTIMIZER.search(last_name(wrapped)) is not None

    def _other_call(self, call: ast.Call, path: str) -> None:
        if path == "torch.nn.parallel.data_parallel":
            self.functional.append(call)
        elif (found := written_out(self._source, self._names, call)) is not None:
            self.functional.append(call)
            self.written_out[call] = found
        elif _is_foreign(path):
            module, _, name = path.rpartition(".")
            hint = SYNC_HINT if "Callback" in name else ""
            self.refused.append((call.func, f"`{name}` comes from `{module}`, no part of this program{hint}"))

    def _reference(self, node: ast.expr) -> None:
        """Sort a use of `DataParallel` that is no call."""
        above = self._source.parent(node)
        if any(
            isinstance(each, ast.Call) and last_name(each.func) in _LOADING for each in self._source.ancestors(node)
        ):
            return
        if asks_for_type(self._source, self._names, node):
            self.type_checks.append(node)
        elif isinstance(above, ast.Attribute):
            self.refused.append((node, f"`{self._source.brief(above)}` reaches into `DataParallel`"))
        elif isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            self.refused.append((node, "`DataParallel` itself is exchanged"))
        elif isinstance(above, ast.ClassDef):
            for definition in (above, *self._classes.derived(above)):
                why = _why_not_derived(definition)
                if why:
                    self.changed[definition] = Changed(node if definition is above else definition.bases[0], why)
            if above not in self.changed:
                self.values.append(node)
        else:
            self.values.append(node)


def _why_not_derived(definition: ast.ClassDef) -> str:
    """Why a class that derives from `DataParallel` can't derive from `ddp.WrappedModel`; empty where it can."""
    if len(definition.bases) > 1 or definition.keywords:
        return f"`{definition.name}` derives from more than `DataParallel`"
    methods = (item.name for item in definition.body if isinstance(item, FUNCTIONS))
    changed = next((name for name in methods if name in _INNER or (name[0] == "_" and name not in _OUTER)), None)
    return f"`{definition.name}` changes how `DataParallel` works (`{changed}`)" if changed else ""


def _is_foreign(path: str) -> bool:
    """Whether a dotted path names what another library has in `DataParallel`'s place."""
    library, name = path.split(".")[0], path.split(".")[-1]
    return library not in _KNOWN and "DataParallel" in name and not _SOMETHING_ELSE.search(name)
