"""DDP015: type checks."""

from __future__ import annotations

from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, ReplaceExpr
from dp2ddp.rules.base import Example, Options, Rule


class TypeChecksRule(Rule):
    """`isinstance(model, nn.DataParallel)` asks for the new wrapper."""

    id = "DDP015"
    title = "Keep asking whether the model is wrapped"
    effect = "keeps asking whether the model is wrapped"
    why = (
        "Scripts unwrap with `model.module if isinstance(model, nn.DataParallel) else model`. The wrapper is another "
        "class now, and the answer must stay yes."
    )
    examples = (
        Example(
            diff="""\
 import torch.nn as nn
+import dp2ddp_runtime as ddp

 net = nn.DataParallel(nn.Linear(4, 2))
-plain = net.module if isinstance(net, nn.DataParallel) else net
+plain = net.module if isinstance(net, ddp.WrappedModel) else net
"""
        ),
    )
    valid = (
        Example("""\
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
assert isinstance(net, nn.Module)
plain = net.module if hasattr(net, "module") else net
"""),
        Example("""\
import torch
import torch.nn as nn

torch.serialization.add_safe_globals([nn.DataParallel])  # checkpoints name it, whoever saved them
net = nn.DataParallel(nn.Linear(4, 2))
"""),
        Example("""\
import torch
import torch.nn as nn

net = torch.load("net.pt", weights_only=False)
if isinstance(net, nn.DataParallel):  # this script wraps nothing: no other class comes here
    net = net.module
"""),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        for reference in facts.wraps.type_checks:
            yield ReplaceExpr(self.id, facts.source.span(reference), "the wrapper's class", "ddp.WrappedModel")
