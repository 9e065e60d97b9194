"""DDP025: hooks that keep what they see."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.roles import Function, Instance, Module, Wrapped
from dp2ddp.rewrite.edits import Finding, Note
from dp2ddp.rules.base import Decisions, Example, Rule
from dp2ddp.source.nodes import names_in
from dp2ddp.source.program import FUNCTIONS, FunctionNode

_REGISTERING = frozenset(
    "register_forward_hook register_forward_pre_hook register_backward_hook register_full_backward_hook".split()
)
_KEEPING = frozenset("append extend update add insert put setdefault __setitem__".split())


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
            if facts.resolver.holds(call.func.value, Wrapped):
                continue  # the wrapper's own hook sees whole batches
            keeps = any(_keeps(facts, each) for each in _called(facts, call.args[0]))
            if keeps and _is_wrapped(facts, call.func.value):
                what = "this hook keeps what it sees, which in a wrapped model are each rank's own rows"
                todo = "return it from `forward`, or add it up over the ranks: `sum(ddp.gather(x))`"
                yield Note(self.id, facts.source.span(call), what, todo)


def _called(facts: Facts, hook: ast.expr) -> Iterator[FunctionNode | ast.Lambda]:
    """What runs when a hook is called."""
    yield from (role.definition for role in facts.resolver.roles(hook) if isinstance(role, Function))
    for role in facts.resolver.roles(hook):
        if isinstance(role, Instance) and role.definition is not None:
            yield from (each.definition for each in facts.resolver.classes.methods(role.definition, "__call__"))
    for value in facts.provenance.of(hook):
        if isinstance(value, ast.Lambda):
            yield value
        elif isinstance(value, ast.Call) and facts.names.qualified(value.func) == "functools.partial" and value.args:
            yield from _called(facts, value.args[0])


def _keeps(facts: Facts, hook: FunctionNode | ast.Lambda) -> bool:
    """Whether a hook puts something where it stays: in globals, in what others hold.

    What belongs to a function around it that doesn't call a wrapped model is that function's: it counts operations.
    """
    is_method = isinstance(facts.source.parent(hook), ast.ClassDef)
    own = facts.source.local_names(hook) - {each.arg for each in hook.args.args[:is_method]}
    around = (each for each in facts.source.ancestors(hook) if isinstance(each, FUNCTIONS))
    around = (each for each in around if not _calls_wrapped(facts, each))
    own = set(own).union(*map(facts.source.local_names, around))
    return any(isinstance(node, ast.Global) or not own.issuperset(_kept_in(node)) for node in ast.walk(hook))


def _calls_wrapped(facts: Facts, function: FunctionNode) -> bool:
    return any(facts.resolver.holds(node.func, Wrapped) for node in ast.walk(function) if isinstance(node, ast.Call))


def _kept_in(node: ast.AST) -> Iterator[str]:
    """The names of what a node puts something into."""
    if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
        yield from names_in(_root(node))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPING:
        yield from names_in(node.func.value)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr" and node.args:
        yield from names_in(node.args[0])


def _root(node: ast.expr) -> ast.expr:
    return list(_prefixes(node))[-1]


def _prefixes(node: ast.expr) -> Iterator[ast.expr]:
    """`net.module.layers[0]`, `net.module.layers`, `net.module`, `net`."""
    yield node
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
        yield node


def _is_wrapped(facts: Facts, layer: ast.expr) -> bool:
    """Whether a layer may be of a model that is wrapped, before or after."""
    models = [wrap.model for wrap in facts.wraps.models if wrap.model is not None]
    made = frozenset().union(*map(facts.provenance.of, models))
    classes = _classes(facts, models)
    left, seen = [layer], set[ast.expr]()
    while left:
        for node in _prefixes(left.pop()):
            if node in seen:
                continue
            if node in made or facts.resolver.holds(node, Wrapped):
                return True
            is_own = isinstance(node, ast.Call) or (isinstance(node, ast.Name) and node.id == "self")
            if is_own and not classes.isdisjoint(facts.source.ancestors(node)):
                return True
            seen.add(node)
            left += [*facts.provenance.of(node), *facts.provenance.elements_of(node)]
    return False


def _classes(facts: Facts, models: list[ast.expr]) -> set[ast.AST]:
    """The classes of models, and of what these are made of."""
    found: set[ast.AST] = set()
    left = list(models)
    while left:
        roles = facts.resolver.roles(left.pop())
        new = {role.definition for role in roles if isinstance(role, Module) and role.definition is not None}
        classes = {each for definition in new for each in facts.resolver.classes.lineage(definition)} - found
        found |= classes
        left += [node for each in classes for node in ast.walk(each) if isinstance(node, ast.Call)]
    return found
