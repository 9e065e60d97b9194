"""What reaches for DataParallel's replicas: the script's own copies of DataParallel, and packages that patch it.

There are no replicas in a converted script. A class or function that calls `torch.nn.parallel.replicate` or
`parallel_apply` itself puts a model on several GPUs, and would do so in each process. A package that exchanges
DataParallel's `replicate` (synchronised BatchNorm) would never be called.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Union

from dp2ddp.analysis.control.reached import Running, means
from dp2ddp.analysis.roles import Resolver, Wrapped
from dp2ddp.analysis.wraps.wraps import Wraps, asks_for_type
from dp2ddp.analysis.wraps.written_out import step
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import in_order, last_name
from dp2ddp.source.program import FUNCTIONS, FunctionNode, ParsedProgram

# The steps of `nn.DataParallel.forward`, which some scripts call or exchange.
_STEPS = frozenset({"replicate", "scatter", "parallel_apply", "gather"})
_COPYING = frozenset({"replicate", "parallel_apply"})
_PATCH = "patch_replication_callback"
_QUEUES = frozenset({"Queue", "SimpleQueue", "put"})
_TORCHS_OWN = "take torch's BatchNorm in its place, and convert with --sync-bn"
_PLAIN = "wrap the model in plain `nn.DataParallel`, then convert again"
# Where batches may be no tensors, or what runs on each GPU no module, that alone would not do.
_PLAIN_BATCHES = _PLAIN.replace(",", ", which takes whole batches (no list with a part for each GPU),")
_PLAIN_OUTPUTS = "leave it out if it does what torch's does; else " + _PLAIN.replace(
    ",", ", which gives back tensors for whole batches (no list with an item for each image),"
)

_CRITERION = "call the loss itself, without a wrapper, on whole outputs and targets, then convert again"
_MODULE = "write the network as an `nn.Module`, and wrap it in plain `nn.DataParallel`, then convert again"
_Unit = Union[ast.ClassDef, FunctionNode]


@dataclass(frozen=True)
class Blocker:
    """What keeps a script from being converted: the place, why, and what to do about it."""

    node: ast.AST
    why: str
    todo: str = _PLAIN


@dataclass(frozen=True)
class Copy:
    """A use of a class or function of the script that works on several GPUs in a way of its own.

    Attributes:
        use: where it is called, or handed on.
        unit: the class or function.
        why: what it does.
        instead: the `nn.DataParallel(...)` that other runs come to instead, None if there is none.
    """

    use: ast.expr
    unit: _Unit
    why: str
    instead: ast.Call | None


class Replicas:
    """Finds what reaches for replicas."""

    def __init__(
        self,
        source: ParsedProgram,
        names: Names,
        resolver: Resolver,
        wraps: Wraps,
        running: Running,
        needs_one_gpu: Callable[[ast.AST], bool],
    ) -> None:
        self._needs_one_gpu = needs_one_gpu
        self._source = source
        self._names = names
        self._resolver = resolver
        self._wraps = wraps
        self._running = running

    def blockers(self, *, sync_bn: bool) -> Iterator[Blocker]:
        """What can't be converted. Packages that synchronise BatchNorm can, `sync_bn` given."""
        brief = self._source.brief
        for node, why in self._wraps.refused:
            yield Blocker(node, why, _PLAIN if "--sync-bn" in why else _PLAIN_BATCHES)
        blocking = {copy.unit: copy for copy in reversed(self.copies) if copy.instead is None}
        for unit, copy in reversed(blocking.items()):
            if unit in self._wraps.changed:
                todo = _PLAIN_OUTPUTS if "`gather`" in copy.why else _PLAIN
                todo = _PLAIN_BATCHES if "`scatter`" in copy.why else todo
                todo = _CRITERION if re.search("Criteri|Loss", unit.name) else todo
                uses = [self._source.where(each.use) for each in self.copies if each.unit is unit and not each.instead]
                todo = re.sub("(DataParallel`|itself)", rf"\1 ({', '.join(dict.fromkeys(uses))})", todo, count=1)
                yield Blocker(self._wraps.changed[unit].base, copy.why, todo)
            else:
                called = {step(self._names, node) for node in ast.walk(unit)}
                todo = _PLAIN if "replicate" in called else _MODULE
                yield Blocker(copy.use, f"{copy.why}, which every process would do", todo)
        for call in self.loose:
            why = f"`{brief(call.func)}` works on several GPUs, which every process would do"
            yield Blocker(call, why)
        for node in self.exchanged:
            why = f"`{brief(node)}`, a step of DataParallel's forward, is exchanged"
            yield Blocker(node, why, "leave it out, then convert again")
        for layer, use in self.meeting:
            why = f"`{layer.name}`, {self._source.where(layer)}, synchronises DataParallel's replicas through queues"
            yield Blocker(use, f"{why}, and each process would wait for the others there", _TORCHS_OWN)
        for call in self.patches:
            if not (sync_bn and isinstance(self._source.parent(call), ast.Expr)):
                why = f"`{brief(call)}` synchronises BatchNorm over DataParallel's replicas"
                yield Blocker(call, why, "convert with --sync-bn: torch's SyncBatchNorm does that for processes")

    @cached_property
    def copies(self) -> list[Copy]:
        """Where the script's own copies of DataParallel, and classes that change it, are used, in order."""
        units: dict[_Unit, str] = {unit: changed.why for unit, changed in self._wraps.changed.items()}
        for call in self._source.calls:
            unit = self._unit(call) if self._takes_devices(call, _COPYING) else None
            if unit is not None and unit not in units:
                where = f"`{self._source.brief(call.func)}`, {self._source.where(call)}"
                units[unit] = f"`{unit.name}` copies a model onto several GPUs by itself ({where})"
        found = {use: unit for unit in units for use in self._uses(unit)}
        return [Copy(use, found[use], units[found[use]], self._instead(use)) for use in in_order(found)]

    @property
    def loose(self) -> list[ast.Call]:
        """Calls for several devices that stand outside of functions, in order."""
        calls = (call for call in self._source.calls if self._source.function(call) is None)
        return [call for call in calls if self._takes_devices(call, _STEPS)]

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

    @cached_property
    def patches(self) -> list[ast.Call]:
        """Calls that make a wrapped model tell its replicas of each other, in order."""
        return [call for call in self._source.calls if self._patches(call)]

    @cached_property
    def meeting(self) -> list[tuple[ast.ClassDef, ast.expr]]:
        """Modules whose replicas ask which device they are on and talk to each other by queues, and their first uses.

        In-Place Activated BatchNorm is the one that was copied into many scripts
        (https://github.com/mapillary/inplace_abn, before its version 1.0).
        """
        classes = (node for node in self._source.nodes if isinstance(node, ast.ClassDef) and _meets(node))
        used = ((layer, next(self._uses(layer), None)) for layer in classes)
        return [(layer, use) for layer, use in used if use is not None]

    @property
    def exchanged(self) -> list[ast.Attribute]:
        """Where the script puts a function of its own in the place of a step of DataParallel's forward."""
        return [node for node in self._steps if isinstance(node.ctx, ast.Store)]

    @property
    def asked_for(self) -> list[ast.Attribute]:
        """Where the script takes a step of DataParallel's forward from a wrapped model."""
        return [node for node in self._steps if isinstance(node.ctx, ast.Load)]

    @cached_property
    def _steps(self) -> list[ast.Attribute]:
        patching = {f.definition for call in self.patches for f in self._resolver.functions_called(call)}
        named = (n for n in self._source.nodes if isinstance(n, ast.Attribute) and n.attr in _STEPS)
        steps = (n for n in named if self._resolver.holds(n.value, Wrapped))
        return [node for node in steps if self._source.function(node) not in patching]

    def _patches(self, call: ast.Call) -> bool:
        path = self._names.qualified(call.func)
        if path is not None:
            return path.rsplit(".", 1)[-1] == _PATCH
        return any(f.definition in self._exchanging for f in self._resolver.functions_called(call))

    @cached_property
    def _exchanging(self) -> set[FunctionNode]:
        """The functions that set `replicate` of what they are given."""
        named = (n for n in self._source.nodes if isinstance(n, ast.Attribute) and n.attr == "replicate")
        given = [n for n in named if isinstance(n.ctx, ast.Store) and isinstance(n.value, ast.Name)]
        around = ((n, f) for n in given for f in self._source.ancestors(n) if isinstance(f, FUNCTIONS))
        return {f for n, f in around if ast.unparse(n.value) in {argument.arg for argument in f.args.args}}

    def _unit(self, node: ast.AST) -> _Unit | None:
        """The class or function that a call stands in; None for one derived from DataParallel, which is a wrap."""
        function = self._source.function(node)
        if function is None:
            return None
        owner = self._source.parent(function)
        if not isinstance(owner, ast.ClassDef):
            return function
        return None if self._resolver.classes.is_wrapper(owner) else owner

    def _uses(self, unit: _Unit) -> Iterator[ast.expr]:
        """Where others name a class or function, if they are used themselves."""
        inside = set(ast.walk(unit))
        named = (n for n in self._source.nodes if isinstance(n, (ast.Name, ast.Attribute)) and n not in inside)
        for node in named:
            if not isinstance(node.ctx, ast.Load) or not means(self._resolver, node, unit):
                continue
            above = self._source.parent(node)
            if isinstance(above, ast.ClassDef):
                yield from self._uses(above)
            elif not asks_for_type(self._source, self._names, node) and self._running.runs(node):
                yield node

    def _instead(self, use: ast.expr) -> ast.Call | None:
        """The wrap that runs where `use` doesn't: on another branch, or before a return."""
        calls = (wrap.call for wrap in self._wraps.models)
        return next((call for call in calls if self._excludes(call, use) and not self._needs_one_gpu(call)), None)

    def _excludes(self, wrap: ast.Call, use: ast.expr) -> bool:
        if self._source.function(wrap) is not self._source.function(use):
            return False
        around = set(self._source.ancestors(use))
        node: ast.AST = wrap
        for above in self._source.ancestors(wrap):
            if isinstance(above, (*FUNCTIONS, ast.Module)):
                return False
            if isinstance(above, (ast.If, ast.IfExp)) and node is not above.test:
                branch = self._branch(above, node)
                if above in around:
                    return not any(part in around or part is use for part in branch)
                if isinstance(branch[-1], (ast.Return, ast.Raise)) and in_order([wrap, use])[0] is wrap:
                    return True
            node = above
        return False

    def _branch(self, choice: ast.If | ast.IfExp, node: ast.AST) -> list[ast.AST]:
        """The branch of a choice that holds `node`."""
        if isinstance(choice, ast.IfExp):
            return [choice.body if node is choice.body else choice.orelse]
        return list(choice.body if node in choice.body else choice.orelse)


def _meets(layer: ast.ClassDef) -> bool:
    """Whether instances of a class tell themselves apart by their device, and have queues."""
    names = {last_name(node.func) for node in ast.walk(layer) if isinstance(node, ast.Call)}
    return "get_device" in names and not names.isdisjoint(_QUEUES)
