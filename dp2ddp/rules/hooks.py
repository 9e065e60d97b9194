"""DDP025: hooks that keep what they see."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, Note
from dp2ddp.rules.base import Example, Options, Rule
from dp2ddp.source.nodes import last_name
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
        "A hook on a layer of the wrapped model sees a replica's rows. Under DataParallel all fill one list, or add "
        "to one number, in one process; each rank has its own. What a forward returns is whole; what a hook keeps is "
        "not."
    )
    examples = (
        Example("""\
import torch
import torch.nn as nn

seen = []

def keep(module, inputs, output):
    seen.append(output.mean(0))

net = nn.DataParallel(nn.Sequential(nn.Linear(4, 2), nn.ReLU()))
net.module[0].register_forward_hook(keep)
net(torch.randn(8, 4))
"""),
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

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        for call in facts.source.calls:
            if not (isinstance(call.func, ast.Attribute) and call.func.attr in _REGISTERING and call.args):
                continue
            hook = _hook(facts, call.args[0])
            is_outside = facts.is_named_as_wrapped(call.func.value)  # the wrapper's own hook sees whole batches
            is_seen = not is_outside and _is_named(facts, call)
            if isinstance(hook, (ast.Lambda, *FUNCTIONS)) and is_seen and _keeps(hook):
                what = "this hook keeps what it sees: each rank's own rows, if it is in a wrapped model"
                todo = "return it from `forward`, or add it up over the ranks: `sum(ddp.gather(x))`"
                yield Note(self.id, facts.span(call), what, todo)


def _is_named(facts: Facts, call: ast.Call) -> bool:
    """Whether the function around a call is named anywhere: a count of operations often stays behind unused."""
    around = [each.name for each in [*facts.source.ancestors(call)][-2:-1] if isinstance(each, FUNCTIONS)]
    names = (last_name(n) for n in facts.source.nodes if isinstance(n, (ast.Name, ast.Attribute)))
    return not around or around[0] in names


def _hook(facts: Facts, given: ast.expr) -> ast.AST | None:
    """The function that is registered: of `partial(f, ...)` it is `f`, of an object its class's `__call__`."""
    if isinstance(given, ast.Call) and given.args and facts.qualified(given.func) == "functools.partial":
        given = given.args[0]
    found = facts.definition(given.func if isinstance(given, ast.Call) else given)
    if isinstance(found, ast.ClassDef):
        return facts.classes.method(found, "__call__")
    return given if isinstance(given, ast.Lambda) else found


def _keeps(hook: FunctionNode | ast.Lambda) -> bool:
    """Whether a hook changes something that isn't its own."""
    nodes = list(ast.walk(hook))
    own = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    calls = (n.func for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute))
    filled = [each.value for each in calls if each.attr in _KEEPING]
    filled += [n.value for n in nodes if isinstance(n, (ast.Attribute, ast.Subscript)) and isinstance(n.ctx, ast.Store)]
    is_outer = any(isinstance(n, (ast.Global, ast.Nonlocal)) for n in nodes)
    return is_outer or any(not (isinstance(each, ast.Name) and each.id in own) or each.id == "self" for each in filled)
