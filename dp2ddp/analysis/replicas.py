"""What reaches for DataParallel's replicas, and can't be converted: there are none in a converted script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Union

from dp2ddp.analysis.classes import Classes
from dp2ddp.analysis.wraps import Wraps
from dp2ddp.analysis.written_out import step
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import last_name
from dp2ddp.source.program import FunctionNode, ParsedProgram

# The steps of `nn.DataParallel.forward`, which some scripts call or exchange.
_STEPS = frozenset({"replicate", "scatter", "parallel_apply", "gather"})
_EXCHANGED = _STEPS - {"replicate"}  # by which packages synchronise BatchNorm, as the runtime knows
_COPYING = frozenset({"replicate", "parallel_apply"})
_PATCH = "patch_replication_callback"
_QUEUES = frozenset({"Queue", "SimpleQueue", "put"})
_SYNC = "convert with --sync-bn: torch's SyncBatchNorm does that for processes"
_TORCHS_OWN = "take torch's BatchNorm in its place, and convert with --sync-bn"
_PLAIN = "wrap the model in plain `nn.DataParallel`, then convert again"
# Where batches may be no tensors, or what runs on each GPU no module, that alone would not do.
_PLAIN_BATCHES = _PLAIN.replace(",", ", which takes whole batches (no list with a part for each GPU),")
_PLAIN_OUTPUTS = "leave it out if it does what torch's does; else " + _PLAIN.replace(
    ",", ", which gives back tensors for whole batches (no list with an item for each image),"
)
_CRITERION = "call the loss itself, without a wrapper, on whole outputs and targets, then convert again"
_MODULE = "put data on one GPU, or write a network as an `nn.Module`, in plain `nn.DataParallel`; then convert again"
_DEVICE_LISTS = re.compile(r"device_ids|devices|gpu_ids|gpus")
_Unit = Union[ast.ClassDef, FunctionNode]


@dataclass(frozen=True)
class Blocker:
    """What keeps a program from being converted: the place, why, and what to do about it."""

    node: ast.AST
    why: str
    todo: str = _PLAIN


class Replicas:
    """Finds them."""

    def __init__(self, source: ParsedProgram, names: Names, classes: Classes, wraps: Wraps) -> None:
        self._source, self._names, self._classes, self._wraps = source, names, classes, wraps

    def blockers(self, *, sync_bn: bool) -> Iterator[Blocker]:
        """All that can't be converted. Packages that synchronise BatchNorm can, `sync_bn` given."""
        for node, why in self._wraps.refused:
            yield Blocker(node, why, _PLAIN if "--sync-bn" in why else _PLAIN_BATCHES)
        yield from self._own_copies()
        for node in self._exchanged():
            why = f"`{self._source.brief(node)}`, a step of DataParallel's forward, is exchanged"
            yield Blocker(node, why, "leave it out, then convert again")
        yield from self._own_places()
        for call in self.patches:
            if not (sync_bn and isinstance(self._source.parent(call), ast.Expr)):
                why = f"`{self._source.brief(call)}` synchronises BatchNorm over DataParallel's replicas"
                yield Blocker(call, why, _SYNC)

    def _own_copies(self) -> Iterator[Blocker]:
        """What puts a model on several GPUs in a way of its own, if it is used."""
        for definition, changed in self._wraps.changed.items():
            uses = self._classes.uses(definition)
            if uses:
                yield Blocker(changed.base, changed.why, self._instead(definition, changed.why, uses))
        for unit, call in self._copying.items():
            uses = self._classes.uses(unit)
            if uses:
                where = f"`{self._source.brief(call.func)}`, {self._source.where(call)}"
                copies = "replicate" in {step(self._names, node) for node in ast.walk(unit)}
                does, todo = ("copies a model onto", _PLAIN) if copies else ("works on", _MODULE)
                why = f"`{unit.name}` {does} several GPUs by itself ({where})"
                yield Blocker(uses[0], f"{why}, which every process would do", todo)
        for call in self._source.calls:
            if self._source.function(call) is None and self._takes_devices(call, _STEPS):
                what = f"`{self._source.brief(call.func)}` works on several GPUs, which every process would do"
                yield Blocker(call, what)

    def _own_places(self) -> Iterator[Blocker]:
        """Layers that ask which replica they are in."""
        for layer in (each for each in self._layers if _meets(each)):
            uses = self._classes.uses(layer)
            if uses:
                where = self._source.where(layer)
                why = f"`{layer.name}`, {where}, synchronises DataParallel's replicas through queues"
                yield Blocker(uses[0], f"{why}, and each process would wait for the others there", _TORCHS_OWN)
        for node in self._compared():
            what = self._source.brief(node)
            why = f"`{what}` asks which GPU a replica is on, and each process sees its own as `cuda:0`"
            yield Blocker(node, why, "leave the question out: what it decides, each process does for its own rows")

    def _instead(self, definition: ast.ClassDef, why: str, uses: list[ast.expr]) -> str:
        todo = _PLAIN_OUTPUTS if "`gather`" in why else _PLAIN_BATCHES if "`scatter`" in why else _PLAIN
        todo = _CRITERION if re.search("Criteri|Loss", definition.name) else todo
        places = ", ".join(dict.fromkeys(map(self._source.where, uses)))
        return re.sub("(DataParallel`|itself)", rf"\1 ({places})", todo, count=1)

    @cached_property
    def _layers(self) -> list[ast.ClassDef]:
        return [node for node in self._source.nodes if isinstance(node, ast.ClassDef)]

    @cached_property
    def _copying(self) -> dict[_Unit, ast.Call]:
        """The program's own copies of DataParallel, each with the first call that makes it one."""
        found: dict[_Unit, ast.Call] = {}
        for call in self._source.calls:
            unit = self._unit(call) if self._takes_devices(call, _COPYING) else None
            if unit is not None and unit not in self._wraps.changed:
                found.setdefault(unit, call)
        return found

    def _unit(self, node: ast.AST) -> _Unit | None:
        """The class or function that a call stands in; None for one derived from DataParallel, which is a wrap."""
        function = self._source.function(node)
        owner = None if function is None else self._source.parent(function)
        if not isinstance(owner, ast.ClassDef):
            return function
        return None if self._classes.derives(owner, ["torch.nn.DataParallel"]) else owner

    def _takes_devices(self, call: ast.Call, steps: frozenset[str]) -> bool:
        """Whether one of torch's functions is called that is given several devices: one of these steps, or a copy."""
        package, _, name = (self._names.qualified(call.func) or "").rpartition(".")
        if self._is_written_out(call):
            return False
        is_step = name in steps and f"{package}.".startswith("torch.nn.parallel.")
        return is_step or package in ("torch.cuda.comm", "torch.nn.parallel.comm")

    def _is_written_out(self, call: ast.Call) -> bool:
        """Whether it is part of a forward that becomes `ddp.data_parallel`."""
        found = self._wraps.written_out.values()
        return any(call in ast.walk(part) for each in found for part in (each.call, *each.steps))

    def _exchanged(self) -> Iterator[ast.Attribute]:
        """Where the script puts a function of its own in the place of a step of a wrapped model's forward."""
        for node in self._source.nodes:
            is_step = isinstance(node, ast.Attribute) and node.attr in _EXCHANGED and isinstance(node.ctx, ast.Store)
            if is_step and last_name(node.value) in self._wraps.targets:  # type: ignore[attr-defined]
                yield node  # type: ignore[misc]

    def _compared(self) -> Iterator[ast.expr]:
        """Where a module compares the index of its device with a number or a device list, computes or picks by it."""
        for layer in self._layers:
            if _meets(layer) or not self._classes.derives(layer, ["torch.nn.Module"]):
                continue
            for call in (n for n in ast.walk(layer) if isinstance(n, ast.Call) and self._asks(n)):
                by = (self._decides_by(use) for use in (call, *self._loads(call)))
                yield from (found for found in by if found is not None)

    def _asks(self, call: ast.Call) -> bool:
        """Whether a call gives the index of a device."""
        return last_name(call.func) == "get_device" or self._names.qualified(call.func) == "torch.cuda.current_device"

    def _loads(self, call: ast.Call) -> list[ast.expr]:
        """Where a name stands that a call's value is assigned to, in its function."""
        made, function = self._source.parent(call), self._source.function(call)
        targets = made.targets if isinstance(made, ast.Assign) else []
        names = {each.id for each in targets if isinstance(each, ast.Name)}
        found = ast.walk(function) if function is not None else ()
        return [n for n in found if isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load)]

    def _decides_by(self, index: ast.expr) -> ast.expr | None:
        """The comparison, the sum or the pick that an index stands in; as an argument or in a text it names a GPU."""
        around = self._source.parent(index)
        around = self._source.parent(around) if isinstance(around, ast.Slice) else around
        if isinstance(around, ast.Subscript):
            return None if self._is_filled(around) else around
        if isinstance(around, ast.Compare):
            others = (n for n in (around.left, *around.comparators) if not isinstance(n, ast.Call) and n is not index)
            is_number = any(isinstance(n, ast.Constant) or _DEVICE_LISTS.search(ast.unparse(n)) for n in others)
            return around if is_number else None
        if not isinstance(around, ast.BinOp) or isinstance(around.left, ast.JoinedStr):
            return None
        is_text = isinstance(around.left, ast.Constant) and isinstance(around.left.value, str)
        return None if is_text else around

    def _is_filled(self, pick: ast.Subscript) -> bool:
        """Whether a function fills what it picks, for each device anew: a cache, as of tables of positions."""
        inside = ast.walk(self._source.function(pick) or pick)
        fills = (n for n in inside if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store))
        return any(ast.unparse(n) == ast.unparse(pick) for n in fills)

    @cached_property
    def patches(self) -> list[ast.Call]:
        """Calls that make a wrapped model tell its replicas of each other, in order."""
        return [call for call in self._source.calls if self._patches(call)]

    def _patches(self, call: ast.Call) -> bool:
        """Whether it is the function of an installed package. A copy in the program meets the runtime's wrapper."""
        return (self._names.qualified(call.func) or "").rsplit(".", 1)[-1] == _PATCH


def _meets(layer: ast.ClassDef) -> bool:
    """Whether instances of a class tell themselves apart by their device, and have queues.

    In-Place Activated BatchNorm is the one that was copied into many scripts
    (https://github.com/mapillary/inplace_abn, before its version 1.0).
    """
    names = {last_name(node.func) for node in ast.walk(layer) if isinstance(node, ast.Call)}
    return "get_device" in names and not names.isdisjoint(_QUEUES)
