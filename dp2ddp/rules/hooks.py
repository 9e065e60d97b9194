"""DDP025: hooks that keep what they see."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.roles import Function, Module, Wrapped
from dp2ddp.rewrite.edits import Finding, Note
from dp2ddp.rules.base import Decisions, Example, Rule
from dp2ddp.source.nodes import names_in
from dp2ddp.source.program import FUNCTIONS, FunctionNode

_REGISTERING = ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook")
_KEEPING = frozenset("append extend update add insert put setdefault".split())


class HooksRule(Rule):
    """A hook inside of the model that keeps something is named; it stays as it is."""

    id = "DDP025"
    title = "Point out hooks that keep what they see"
    why = (
        "A hook on a layer of the wrapped model runs on a replica's rows. Under DataParallel all fill one list, "
        "or add to one number, in one process; each rank has its own, with its own rows. What a forward returns is "
        "whole; what a hook keeps is not."
    )
    examples = (
        Example(
            before="""\
import torch
import torch.nn as nn

seen = []

def keep(module, inputs, output):
    seen.append(output.mean(0))

net = nn.DataParallel(nn.Sequential(nn.Linear(4, 2), nn.ReLU()))
net.module[0].register_forward_hook(keep)
net(torch.randn(8, 4))
""",
        ),
    )
    valid = (
        Example("""\
import torch
import torch.nn as nn

def clip(module, inputs, output):
    found = [output]
    found.append(1)
    return output.clamp(-1, 1)

net = nn.DataParallel(nn.Sequential(nn.Linear(4, 2), nn.ReLU()))
net.module[0].register_forward_hook(clip)
net(torch.randn(8, 4))
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        for call in facts.source.calls if facts.parallel else ():
            if not isinstance(call.func, ast.Attribute) or call.func.attr not in _REGISTERING or not call.args:
                continue
            hooks = [role.definition for role in facts.resolver.roles(call.args[0]) if isinstance(role, Function)]
            if any(_keeps(facts, each) for each in hooks) and _is_wrapped(facts, call.func.value):
                what = "this hook keeps what it sees, which in a wrapped model are each rank's own rows"
                todo = "return it from `forward`, or add it up over the ranks: `sum(ddp.gather(x))`"
                yield Note(self.id, facts.source.span(call), what, todo)


def _keeps(facts: Facts, hook: FunctionNode) -> bool:
    """Whether a hook puts something where it stays: in globals, in what others hold.

    What belongs to a function around it is that function's: it counts operations, and is done.
    """
    is_method = isinstance(facts.source.parent(hook), ast.ClassDef)
    own = facts.source.local_names(hook) - {each.arg for each in hook.args.args[:is_method]}
    around = (each for each in facts.source.ancestors(hook) if isinstance(each, FUNCTIONS))
    own = set(own).union(*map(facts.source.local_names, around))
    for node in ast.walk(hook):
        if isinstance(node, ast.Global):
            return True
        kept = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else None
        if kept is not None and node.func.attr in _KEEPING and names_in(kept) - own:  # type: ignore[attr-defined]
            return True
        if (
            isinstance(node, (ast.Attribute, ast.Subscript))
            and isinstance(node.ctx, ast.Store)
            and _root(node) not in own
        ):
            return True
    return False


def _root(node: ast.expr) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_wrapped(facts: Facts, layer: ast.expr, depth: int = 3) -> bool:
    """Whether a layer may be of a model that is wrapped, before or after."""
    while isinstance(layer, (ast.Attribute, ast.Subscript, ast.Call)):
        layer = layer.func if isinstance(layer, ast.Call) else layer.value
    over = facts.provenance.elements_of(layer)  # `for layer in net.modules()`
    if over and depth:
        return any(_is_wrapped(facts, each, depth - 1) for each in over)
    wrapped = [wrap.model for wrap in facts.wraps.models if wrap.model is not None]
    roles = facts.resolver.roles(layer)
    if isinstance(layer, ast.Name) and layer.id == "self":
        return any(
            isinstance(role, Module) and role in facts.resolver.roles(model) for model in wrapped for role in roles
        )
    if any(isinstance(role, Wrapped) for role in roles):
        return True
    return any(not facts.provenance.of(model).isdisjoint(facts.provenance.of(layer)) for model in wrapped)
