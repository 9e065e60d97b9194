"""DDP004: use this rank's device."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dp2ddp.analysis.bound_once import only_value
from dp2ddp.analysis.changes import binding
from dp2ddp.analysis.device_names import index_of, is_compared, is_indexed, literal_index
from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.given_devices import picked_later
from dp2ddp.analysis.roles import Instance
from dp2ddp.analysis.visible import told
from dp2ddp.rewrite.edits import Finding, Note, RemoveStatement, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule
from dp2ddp.source.nodes import keyword, names_in
from dp2ddp.source.spans import Span

_DEVICE_NAME = re.compile("(gpu|cuda|device)(_?(id|idx|index))?", re.IGNORECASE)
_OF_TENSORS = frozenset("to size dim view new_zeros new_tensor".split())  # methods: options may be called `dim`, too
_DEVICE_WORDS = re.compile("gpu|cuda|dev|rank", re.IGNORECASE)
_CHOOSING = tuple(
    "torch.cuda.set_device torch.cuda.device torch.cuda.synchronize torch.accelerator.set_device_index "
    "torch.accelerator.synchronize".split()
)
#: What an option is by default: the current device is this rank's.
_OPTION = '"cuda"'
_REASON = "each rank has its own device"
_BY_SETUP = "each rank's device is set by `ddp.setup()`, further down"


class DevicesRule(Rule):
    """Device indices become this rank's device; `"cuda"`, `"cuda:0"` and `.cuda(0)` mean it already."""

    id = "DDP004"
    title = "Use this rank's device instead of a fixed index"
    effect = "uses each process's own device"
    parallel = True
    why = (
        "Under DataParallel the script puts its batches on its first GPU, whichever that is. With one process per "
        'GPU, each sees only its own, as `cuda:0` (`ddp.setup` sees to that). So `.cuda()`, `.cuda(0)`, `"cuda"` '
        'and `"cuda:0"` stay; only indices that are, or may be, different change. '
        "A line that makes a GPU the current one before the processes start goes."
    )
    examples = (
        Example(
            before="""\
import torch
import torch.nn as nn

ids = [1, 2]
device = torch.device("cuda:1" if torch.cuda.is_available() else "cpu")
other = torch.device("cuda:1" if len(ids) > 1 else "cpu")
net = nn.DataParallel(nn.Linear(4, 2), ids)
x = torch.zeros(3, 4).cuda(1)
y = torch.zeros(3).to(f"cuda:{ids[0]}").cuda(ids[0], non_blocking=True)
state = torch.load("net.pt", map_location="cuda:1")
torch.cuda.set_device(ids[0])
""",
            after="""\
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp

ids = [1, 2]
device = ddp.device()
other = torch.device(ddp.device() if len(ids) > 1 else "cpu")
net = nn.DataParallel(nn.Linear(4, 2), ids)
x = torch.zeros(3, 4).cuda()
y = torch.zeros(3).to(ddp.device()).cuda(non_blocking=True)
state = torch.load("net.pt", map_location=ddp.device())
torch.cuda.set_device(ddp.device())
""",
        ),
    )
    valid = (
        Example("""\
import torch
import torch.nn as nn

device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")  # the only one that a rank sees
net = nn.DataParallel(nn.Linear(4, 2), device_ids=[0, 1])
x = torch.zeros(3, 4).cuda(0).to(device).to("cuda")
torch.cuda.set_device(0)
"""),
        Example(
            allow_ddp=True,
            before="""\
import torch.distributed as dist
import torch.nn as nn

def build(net, args):
    if args.distributed:  # the script's own distributed training
        dist.init_process_group("nccl")
        return nn.parallel.DistributedDataParallel(net.cuda(args.gpu))
    return nn.DataParallel(net).cuda()
""",
        ),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        gone = self._dropped(facts)
        for call in () if facts.beside_ddp else _chosen_early(facts):
            statement = facts.source.statement(call)
            gone.update(ast.walk(statement))
            yield RemoveStatement(self.id, facts.source.span(statement), _BY_SETUP, drop_empty_if=True)
            others = [entry for entry in facts.source.entry_trees if entry not in facts.parallel_entries]
            if any(facts.running.comes_to(entry, call) for entry in others):
                yield Note(
                    self.id,
                    facts.source.span(call),
                    "scripts that wrap no model come here, too, and no longer choose this GPU",
                    "choose it in those scripts themselves, or by CUDA_VISIBLE_DEVICES",
                )
        picked = (pick for launch in facts.launches for pick in picked_later(facts, launch))
        gone.update(part for pick in picked for part in ast.walk(facts.source.statement(pick)))
        yield from self._several(facts, gone)
        options = False
        for node in facts.source.nodes:
            edit = self._edit(facts, node) if isinstance(node, ast.expr) and node not in gone else None
            if edit is not None:
                gone.update(_replaced_by(facts, node, edit))
                options |= edit.template == _OPTION
                yield edit
        if options:
            yield from self._compared(facts)

    def _compared(self, facts: Facts) -> Iterator[Note]:
        """A note where an option that says `cuda` now is asked for a number."""
        for node in facts.source.nodes:
            if isinstance(node, ast.expr) and is_indexed(node) and is_compared(facts.source, node):
                what = f"the option's default is `cuda` now, which {facts.source.segment(node)} is compared with here"
                yield Note(self.id, facts.source.span(node), what, "compare with `cuda`, or ask `.startswith('cuda')`")

    def _several(self, facts: Facts, dropped: set[ast.AST]) -> Iterator[Note]:
        """A note where the script itself spreads things over several GPUs."""
        places: dict[int, ast.expr] = {}
        each: ast.expr | None = None
        for node in facts.source.nodes:
            if isinstance(node, ast.expr) and node not in dropped:
                index = literal_index(node)
                if index is not None:
                    places.setdefault(index, node)
                elif each is None and self._is_each_device(facts, node):
                    each = node
        if len(places) > 1 or each is not None:
            named = [f"`{facts.source.brief(each)}`"] if each is not None else map(str, sorted(places))
            yield Note(
                self.id,
                facts.source.span(each or places[max(places)]),
                f"the script names several GPUs ({', '.join(named)}), and now all of them mean this rank's own",
                "check that no part of the model has to live on another GPU than the rest",
            )

    def _is_each_device(self, facts: Facts, node: ast.expr) -> bool:
        """Whether a loop moves something to one device after the other: `part.cuda(ids[i])`."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cuda"):
            return False
        given = node.args[0] if node.args else None
        if not isinstance(given, ast.Subscript):
            return False
        picked = names_in(given.slice)
        loops = (above for above in facts.source.ancestors(node) if isinstance(above, ast.For))
        return any(isinstance(n, ast.Name) and n.id in picked for loop in loops for n in ast.walk(loop.target))

    def _dropped(self, facts: Facts) -> set[ast.AST]:
        """What goes with the wraps: all of them but the models."""
        gone: set[ast.AST] = set()
        for wrap in facts.wraps.models:
            gone.update(ast.walk(wrap.call))
            if wrap.model is not None:
                gone.difference_update(ast.walk(wrap.model))
        for call in facts.wraps.optimizers:
            gone.update(n for k in call.keywords for n in ast.walk(k.value))
            gone.update(n for a in call.args[1:] for n in ast.walk(a))
        return gone

    def _edit(self, facts: Facts, node: ast.expr) -> ReplaceExpr | None:
        if isinstance(node, ast.Call):
            path = facts.names.qualified(node.func)
            if path == "torch.device" and self._is_whole_device(facts, node):
                return self._replaced(facts, node)
            if path in _CHOOSING and len(node.args) == 1:
                given = node.args[0]
                stays = _is_zero(given) or self._is_this_device(facts, given)
                return None if stays else self._replaced(facts, given)
            if path is None and isinstance(node.func, ast.Attribute):
                return self._move(facts, node, node.func)
            device = keyword(node, "device") if (path or "").startswith("torch.") else None
            return self._replaced(facts, device) if device is not None and self._is_index(facts, device) else None
        if is_indexed(node):
            return self._indexed(facts, node)
        return None

    def _replaced(self, facts: Facts, node: ast.expr) -> ReplaceExpr:
        span = facts.source.span(node)
        if facts.beside_ddp:  # the script's own distributed training goes on with its own devices
            return ReplaceExpr(self.id, span, _REASON, "ddp.device(__h_it__)", {"it": span})
        return ReplaceExpr(self.id, span, _REASON, "ddp.device()")

    def _is_whole_device(self, facts: Facts, call: ast.Call) -> bool:
        """Whether a `torch.device(...)` means the first GPU, or the CPU where there is none."""
        if len(call.args) == 2 and isinstance(call.args[0], ast.Constant):
            return call.args[0].value == "cuda" and not _is_zero(call.args[1])
        if len(call.args) != 1 or call.keywords:
            return False
        given = call.args[0]
        if self._is_index(facts, given):
            return True
        if isinstance(given, ast.IfExp) and is_indexed(given.body):
            asks = (
                isinstance(given.test, ast.Call) and facts.names.qualified(given.test.func) == "torch.cuda.is_available"
            )
            return asks and isinstance(given.orelse, ast.Constant) and given.orelse.value == "cpu"
        return is_indexed(given) and not _is_picked(facts, index_of(given))

    def _is_this_device(self, facts: Facts, node: ast.expr) -> bool:
        """Whether a device is this rank's by what it comes from: a line that says so, or whose own edit sees to it."""
        ends = facts.provenance.of(node)
        return _is_picked(facts, node) or (bool(ends) and all(self._makes_this_device(facts, end) for end in ends))

    def _makes_this_device(self, facts: Facts, node: ast.expr) -> bool:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get_device":
            return True  # of a tensor, which lives here
        if isinstance(node, ast.Attribute) and node.attr == "device":
            return _is_given_to_forward(facts, node.value) or _is_tensor(facts, node.value)
        if isinstance(node, ast.Subscript):
            return _is_first_of_range(facts, node)
        path = facts.names.qualified(node.func) if isinstance(node, ast.Call) else None
        if path == "torch.device" and isinstance(node, ast.Call) and node.args:
            given = node.args[0]
            choices = [given.body, given.orelse] if isinstance(given, ast.IfExp) else [given]
            return len(node.args) == 2 or all(is_indexed(each) or _is_text(each) for each in choices)
        return path == "torch.cuda.current_device" or is_indexed(node) or _is_text(node) or _is_zero(node)

    def _indexed(self, facts: Facts, node: ast.expr) -> ReplaceExpr | None:
        above = facts.source.parent(node)
        if isinstance(above, (ast.Expr, ast.Dict, ast.DictComp, ast.JoinedStr, ast.FormattedValue)):
            return None
        if is_compared(facts.source, node) or _is_picked(facts, index_of(node)):
            return None
        call = next((a for a in facts.source.ancestors(node) if isinstance(a, ast.Call)), None)
        if call is not None and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            # A default stays text, as the option's type says.
            return ReplaceExpr(self.id, facts.source.span(node), _REASON, _OPTION)
        if call is not None and facts.names.qualified(call.func) == "builtins.print":
            return None
        return self._replaced(facts, node)

    def _move(self, facts: Facts, call: ast.Call, func: ast.Attribute) -> ReplaceExpr | None:
        span = facts.source.span
        if facts.resolver.functions_called(call):
            return self._own_move(facts, call)
        if any(isinstance(given, ast.Starred) for given in call.args):
            return None
        if func.attr == "cuda":
            given = [k for k in call.keywords if k.arg != "device"]
            if not call.args and len(given) == len(call.keywords):
                return None
            target = call.args[0] if call.args else keyword(call, "device") or call
            if _is_zero(target) or self._is_this_device(facts, target):
                return None
            if self._may_be_own(facts, func):
                # Whatever object it is, it gets as many arguments as before.
                return self._replaced(facts, target) if _takes_device(facts, func, target) else None
            if facts.beside_ddp:
                return self._replaced(facts, target)
            holes: dict[str, Span] = {"it": span(func)}
            kept = []
            for number, named in enumerate(given):
                holes[f"k{number}"] = span(named.value)
                kept.append(f"{named.arg}=__h_k{number}__" if named.arg else f"**__h_k{number}__")
            for number, argument in enumerate(call.args[1:]):
                holes[f"a{number}"] = span(argument)
                kept.insert(number, f"non_blocking=__h_a{number}__")
            return ReplaceExpr(self.id, span(call), _REASON, f"__h_it__({', '.join(kept)})", holes)
        to = call.args[0] if func.attr == "to" and call.args else None
        device = keyword(call, "device") if func.attr == "to" or func.attr.startswith("new_") else None
        index = to or device
        return self._replaced(facts, index) if index is not None and self._is_index(facts, index) else None

    def _own_move(self, facts: Facts, call: ast.Call) -> ReplaceExpr | None:
        """A call of a method that the script defines itself: of its arguments only an index for a device changes.

        That is one by the parameter's name, or by what the method does with it. (`rerank=100` is none.)
        """
        for called, name, value in facts.resolver.arguments(call):
            is_device = (called, name) in facts.picked_names or _DEVICE_NAME.fullmatch(name)
            if is_device and self._is_index(facts, value):
                return self._replaced(facts, value)
        return None

    def _may_be_own(self, facts: Facts, func: ast.Attribute) -> bool:
        """Whether a method may be neither a tensor's nor a module's, but of a class of this program."""
        if isinstance(func.value, ast.Call) and facts.names.qualified(func.value.func) == "builtins.super":
            owner = facts.source.parent(facts.source.function(func) or func)
            return not (isinstance(owner, ast.ClassDef) and facts.resolver.classes.is_module(owner))
        roles = facts.resolver.roles(func.value)
        return any(isinstance(role, Instance) for role in roles) if roles else bool(facts.source.methods(func.attr))

    def _is_index(self, facts: Facts, node: ast.expr) -> bool:
        """Whether a device's number is given: `1`, the first of the wrap's `device_ids`, or what `.cuda()` gets."""
        if isinstance(node, ast.Constant):
            return type(node.value) is int and not _is_zero(node)
        if isinstance(node, (ast.Name, ast.Attribute)):
            is_name = isinstance(node, ast.Name) and binding(facts, node) in facts.picked_names
            return (is_name or ast.unparse(node) in facts.picked_devices) and not self._is_this_device(facts, node)
        if not isinstance(node, ast.Subscript):
            return False
        return ast.unparse(node.value) in facts.wraps.device_ids_written and not _is_first_of_range(facts, node)


def _is_picked(facts: Facts, node: ast.expr | None) -> bool:
    """Whether it is the one device that `setup` is given where nothing is wrapped, and None elsewhere."""
    given = {facts.given[id(launch)] for launch in facts.launches}
    picked = next(iter(given)).picked if len(given) == 1 else None  # (else `setup` isn't given it)
    if node is None or picked is None:
        return False
    there = [told(facts, launch, node) for launch in facts.launches]
    return all(known is not None and ast.unparse(known) == picked for known in there)


def _is_given_to_forward(facts: Facts, node: ast.expr) -> bool:
    """Whether this is what a `forward` is given, or a part of it: a replica's own, on its device."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    function = facts.source.function(node)
    given = function.args.args[1:] if function is not None and function.name == "forward" else []
    return isinstance(node, ast.Name) and node.id in {each.arg for each in given}


def _is_tensor(facts: Facts, node: ast.expr) -> bool:
    """Whether methods of tensors are called of a name, in its function: `hidden.size(1)`."""
    function = facts.source.function(node)
    if not isinstance(node, ast.Name) or function is None:
        return False
    called = (n.func for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    return any(f.attr in _OF_TENSORS and ast.unparse(f.value) == node.id for f in called)


def _chosen_early(facts: Facts) -> Iterator[ast.Call]:
    """The lines that choose the current GPU before the processes start: a rank would take one that isn't its own."""
    before = facts.before.nodes(*facts.launches)
    for call in facts.source.calls:
        path = facts.names.qualified(call.func)
        is_line = isinstance(facts.source.parent(call), ast.Expr)
        if path in ("torch.cuda.set_device", "torch.accelerator.set_device_index") and is_line and call in before:
            yield call


def _replaced_by(facts: Facts, node: ast.AST, edit: ReplaceExpr) -> Iterator[ast.AST]:
    """The parts of an expression that an edit takes away, which leaves the `x` of `x.cuda(0)`."""
    kept = [hole for hole in edit.holes.values() if hole != edit.span]
    for part in (n for n in ast.walk(node) if isinstance(n, ast.expr)):
        span = facts.source.span(part)
        if edit.span.contains(span) and not any(hole.contains(span) for hole in kept):
            yield part


def _is_zero(node: ast.expr) -> bool:
    """Whether a device is the first, the only one that a rank has."""
    return isinstance(node, ast.Constant) and (node.value == "cuda:0" or (type(node.value) is int and not node.value))


def _is_first_of_range(facts: Facts, node: ast.Subscript) -> bool:
    """Whether a device is `ids[0]` of `ids = range(n)`, which is 0."""
    value = only_value(facts, node.value) if isinstance(node.value, ast.Name) else None
    is_range = isinstance(value, ast.Call) and facts.names.qualified(value.func) == "builtins.range"
    return is_range and len(value.args) == 1 and _is_zero(node.slice)  # type: ignore[union-attr]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _takes_device(facts: Facts, func: ast.Attribute, given: ast.expr) -> bool:
    """Whether a method that may be of this program means a device by what it is given."""
    if isinstance(given, ast.Constant) or _DEVICE_WORDS.search(ast.unparse(given)):
        return True
    inside = facts.source.function(func)
    if inside is not None and inside.name == func.attr:  # `def cuda(self, index): self.x = self.x.cuda(index)`
        return isinstance(given, ast.Name) and given.id in {argument.arg for argument in inside.args.args}
    methods = [method.args for method in facts.source.methods(func.attr)]
    return bool(methods) and all(len(args.args) == 2 and args.vararg is None for args in methods)
