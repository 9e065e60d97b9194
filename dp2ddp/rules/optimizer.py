"""DDP003: unwrap optimizers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, RemoveStatement, ReplaceExpr
from dp2ddp.rules.base import Example, Options, Rule
from dp2ddp.source.nodes import argument, last_name

_REASON = "an optimizer needs no wrapper"


class OptimizerRule(Rule):
    """`nn.DataParallel(optimizer)` and the `.module` that it takes to reach the optimizer go."""

    id = "DDP003"
    title = "Unwrap the optimizer"
    effect = "unwraps the optimizer"
    why = (
        "Old scripts put the optimizer into `nn.DataParallel`, too, and step it through `.module`. It never did "
        "anything. An optimizer is what `torch.optim` builds, or what is called so; a model's `.module` stays."
    )
    essential = True
    always = True
    examples = (
        Example(
            diff="""\
 import torch.nn as nn
 import torch.optim as optim

 net = nn.Linear(4, 2)
 optimizer = optim.SGD(net.parameters(), lr=0.1)
-optimizer = nn.DataParallel(optimizer, device_ids=[0, 1])
-scheduler = optim.lr_scheduler.StepLR(optimizer.module, 1)
-optimizer.module.zero_grad()
-optimizer.module.step()
-print(optimizer.module.param_groups[0]["lr"], net.module)
+scheduler = optim.lr_scheduler.StepLR(optimizer, 1)
+optimizer.zero_grad()
+optimizer.step()
+print(optimizer.param_groups[0]["lr"], net.module)
"""
        ),
    )
    valid = (
        Example("""\
import torch.nn as nn
import torch.optim as optim

class Warmup:
    def __init__(self, optimizer):
        self.module = optimizer

net = nn.DataParallel(nn.Linear(4, 2))
optimizer = Warmup(optim.SGD(net.module.parameters(), lr=0.1))  # the model's `.module`
optimizer.module.step()  # a `.module` of the script's own
"""),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        span = facts.source.span
        for call in facts.wraps.optimizers:
            statement = facts.source.statement(call)
            wrapped = argument(call, 0, "module")
            assert wrapped is not None  # as by it the call is told from one that wraps a model
            if ast.unparse(statement) == f"{ast.unparse(wrapped)} = {ast.unparse(call)}":
                yield RemoveStatement(self.id, span(statement), _REASON)
            else:
                yield ReplaceExpr(self.id, span(call), _REASON, "__h_optimizer__", {"optimizer": span(wrapped)})
        statements = (facts.source.statement(call) for call in facts.wraps.optimizers)
        held = {last_name(t) for each in statements if isinstance(each, ast.Assign) for t in each.targets} - {""}
        attributes = (n for n in facts.source.nodes if isinstance(n, ast.Attribute) and n.attr == "module")
        for node in attributes:
            if last_name(node.value) in held:
                reason = "the optimizer is not wrapped any more"
                yield ReplaceExpr(self.id, span(node), reason, "__h_it__", {"it": span(node.value)})
