"""DDP002: wrap the model."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.paths import Detour
from dp2ddp.analysis.source import same
from dp2ddp.analysis.wraps import Wrap
from dp2ddp.edits import Finding, InsertAfter, Note, RemoveStatement, ReplaceExpr, Span
from dp2ddp.rules.base import Example, Options, Rule

_REASON = "one replica per process; gradients are averaged, buffers are rank 0's"


class WrapRule(Rule):
    """`nn.DataParallel(model, ...)` becomes `ddp.wrap_model(model)`, whatever guard stands around it."""

    id = "DDP002"
    title = "Wrap the model in DistributedDataParallel"
    why = (
        "`ddp.wrap_model` moves the model to this rank's device and averages gradients over the ranks. A guard such "
        "as `device_count() > 1` must not skip it: ranks without it would train apart. BatchNorm, unused parameters "
        "and state dict keys behave as under DataParallel."
    )
    essential = True
    examples = (
        Example(
            before="""\
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2), device_ids=[0, 1]).cuda()
""",
            after="""\
import torch.nn as nn
import dp2ddp_runtime as ddp

net = ddp.wrap_model(nn.Linear(4, 2), gather=True)
""",
        ),
        Example(
            before="""\
import torch
import torch.nn as nn

net = nn.Linear(4, 2)
if torch.cuda.device_count() > 1:
    print("Let's use", torch.cuda.device_count(), "GPUs!")
    net = nn.DataParallel(net)
net.to("cuda")
""",
            after="""\
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp

net = nn.Linear(4, 2)
if torch.cuda.device_count() > 1:
    print("Let's use", torch.cuda.device_count(), "GPUs!")
net = ddp.wrap_model(net, gather=True)
net.to("cuda")
""",
        ),
        Example(
            before="""\
import torch
from torch.nn import DataParallel as DP, Linear

class Trainer:
    def __init__(self, gpus):
        net = Linear(4, 2)
        if len(gpus) > 1:
            self.net = DP(net, gpus).cuda()
        else:
            self.net = net.cuda()
""",
            after="""\
import torch
from torch.nn import DataParallel as DP, Linear
import dp2ddp_runtime as ddp

class Trainer:
    def __init__(self, gpus):
        net = Linear(4, 2)
        self.net = ddp.wrap_model(net, gather=True)
""",
        ),
        Example(
            before="""\
import torch.nn as nn
from torchvision import models

def build(arch):
    model = models.__dict__[arch]()
    if arch.startswith("alexnet") or arch.startswith("vgg"):
        model.features = nn.DataParallel(model.features)
        model.cuda()
    else:
        model = nn.DataParallel(model).cuda()
    return model

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.DataParallel(nn.Linear(4, 2))
        self.head = nn.Linear(2, 2)
""",
            after="""\
import torch.nn as nn
from torchvision import models
import dp2ddp_runtime as ddp

def build(arch):
    model = models.__dict__[arch]()
    if arch.startswith("alexnet") or arch.startswith("vgg"):
        model.features = ddp.wrap_model(model.features, gather=True, root=model)
        model.cuda()
    else:
        model = ddp.wrap_model(model, gather=True)
    return model

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = ddp.wrap_model(nn.Linear(4, 2), gather=True, root=self)
        self.head = nn.Linear(2, 2)
""",
        ),
        Example(
            before="""\
import torch.nn as nn

class Open(nn.DataParallel):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

wrappers = {"open": Open, "plain": nn.DataParallel}
net = wrappers["open"](nn.Linear(4, 2))
""",
            after="""\
import torch.nn as nn
import dp2ddp_runtime as ddp

class Open(ddp.WrappedModel):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)

wrappers = {"open": Open, "plain": ddp.WrappedModel}
net = wrappers["open"](nn.Linear(4, 2))
""",
        ),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        hoisted: list[Wrap] = []
        noted: set[ast.AST] = set()
        for wrap in facts.wraps.models:
            if wrap.guard is None:
                yield from self._in_place(facts, wrap)
            elif not any(wrap.guard is other.guard and _same_wrap(wrap, other) for other in hoisted):
                hoisted.append(wrap)
                yield from self._hoisted(facts, wrap)
            if wrap.detour is not None and wrap.detour.branch not in noted and not self._copies_instead(facts, wrap):
                noted.add(wrap.detour.branch)
                yield self._skippable(facts, wrap.detour)
        for value in facts.wraps.values:
            if facts.wrap_keywords:
                yield Note(
                    self.id,
                    facts.source.span(value),
                    f"`DataParallel` is handed on here, and takes no {', '.join(facts.wrap_keywords)}",
                    "wrap the model by a plain call of `nn.DataParallel`, then convert again",
                )
            yield ReplaceExpr(self.id, facts.source.span(value), "takes `DataParallel`'s arguments", "ddp.WrappedModel")
        yield from self._unused_imports(facts)

    def _in_place(self, facts: Facts, wrap: Wrap) -> Iterator[Finding]:
        assert wrap.model is not None
        span = facts.source.span
        template, holes = self._call(facts, wrap)
        yield ReplaceExpr(self.id, span(wrap.outer), _REASON, template, holes)

    def _copies_instead(self, facts: Facts, wrap: Wrap) -> bool:
        """Whether the way around a wrap leads to the script's own copy of DataParallel, which has a note of its own."""
        function = facts.source.function(wrap.call)
        return any(facts.source.function(copy.use) is function for copy in facts.replicas.copies)

    def _skippable(self, facts: Facts, detour: Detour) -> Note:
        place = (
            f"where `{facts.source.brief(detour.branch.test)}` is {str(detour.when).lower()}, the model is not wrapped"
        )
        if facts.strategy == "gathered":
            what, todo = f"{place} and every rank computes all of it", "fine, but no faster than one process"
        else:
            what, todo = f"{place} and the ranks train apart", "wrap the model on every path"
        return Note(self.id, facts.source.span(detour.branch), what, todo)

    def _hoisted(self, facts: Facts, wrap: Wrap) -> Iterator[Finding]:
        """Move the wrap behind its guard; the guard keeps whatever else it does."""
        assert wrap.guard is not None
        span = facts.source.span
        assert wrap.target is not None
        siblings = [w for w in facts.wraps.models if w.guard is wrap.guard and _same_wrap(w, wrap)]
        gone = [(s.statement, "the wrap moves behind its guard") for s in siblings]
        gone += [(m, "`ddp.wrap_model` moves the model") for m in _moves_left_alone(facts, wrap, siblings)]
        for statement, reason in gone:
            yield RemoveStatement(self.id, span(statement), reason, drop_empty_if=True)
        template, holes = self._call(facts, wrap)
        target = facts.source.segment(wrap.target)
        reason = f"{_REASON}; on every path, or ranks would train apart"
        yield InsertAfter(self.id, span(wrap.guard), reason, [f"{target} = {template}"], holes)

    def _call(self, facts: Facts, wrap: Wrap) -> tuple[str, dict[str, Span]]:
        assert wrap.model is not None
        holes = {"model": facts.source.span(wrap.model)}
        keywords = dict(facts.wrap_keywords)
        if facts.strategy == "gathered":
            keywords["gather"] = "True"
        if wrap.dim is not None and not (isinstance(wrap.dim, ast.Constant) and wrap.dim.value == 0):
            holes["dim"] = facts.source.span(wrap.dim)
            keywords["dim"] = "__h_dim__"
        if wrap.part is not None and wrap.part.root is not None:
            keywords["root"] = " ".join(facts.source.segment(wrap.part.root).split())
        order = ("gather", "dim", "sync_bn", "root")
        given = "".join(f", {name}={keywords[name]}" for name in order if name in keywords)
        return f"ddp.wrap_model(__h_model__{given})", holes

    def _unused_imports(self, facts: Facts) -> Iterator[Finding]:
        """`from torch.nn import DataParallel` has no use once every wrap is converted."""
        converted = {w.call.func for w in facts.wraps.models} | {c.func for c in facts.wraps.optimizers}
        converted.update(facts.wraps.values, facts.wraps.type_checks)
        for node in facts.source.nodes:
            if not (isinstance(node, ast.ImportFrom) and len(node.names) == 1 and node.names[0].name == "DataParallel"):
                continue
            local = node.names[0].asname or "DataParallel"
            uses = [n for n in ast.walk(facts.source.module(node)) if isinstance(n, ast.Name) and n.id == local]
            if all(u in converted for u in uses):
                yield RemoveStatement(self.id, facts.source.span(node), "`DataParallel` is not used any more")


def _same_wrap(a: Wrap, b: Wrap) -> bool:
    return a.target is not None and same(a.target, b.target) and same(a.model, b.model)


def _moves_left_alone(facts: Facts, wrap: Wrap, siblings: list[Wrap]) -> list[ast.stmt]:
    """In the guard's other branch, `net = net.cuda()` and the like, when it holds nothing else."""
    assert wrap.guard is not None
    assert isinstance(wrap.statement, ast.Assign)
    blocks = [facts.source.block(s.statement) for s in siblings]
    others = [b for b in (wrap.guard.body, wrap.guard.orelse) if b and not any(b is block for block in blocks)]
    found: list[ast.stmt] = []
    for block in others:
        moves = [m for s in block for m in _simple(s)]
        if not all(_is_move(m, wrap) for m in moves):
            return []
        found += moves
    return found


def _simple(statement: ast.stmt) -> list[ast.stmt]:
    """A statement, or what an `if` holds on all its branches."""
    if not isinstance(statement, ast.If):
        return [statement]
    return [inner for s in (*statement.body, *statement.orelse) for inner in _simple(s)]


def _is_move(statement: ast.stmt, wrap: Wrap) -> bool:
    """`net = net.cuda()`, `net.to(device)` or `self.net = net`, of the model that is wrapped."""
    assert isinstance(wrap.statement, ast.Assign)
    target = wrap.statement.targets[0]
    value = statement.value if isinstance(statement, (ast.Assign, ast.Expr)) else None
    if isinstance(statement, ast.Assign) and not (len(statement.targets) == 1 and same(statement.targets[0], target)):
        return False
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in ("cuda", "to"):
        value = value.func.value
    model = wrap.model
    while isinstance(model, ast.Call) and isinstance(model.func, ast.Attribute) and model.func.attr in ("cuda", "to"):
        model = model.func.value
    return value is not None and (same(value, model) or same(value, target))
