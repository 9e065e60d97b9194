"""DDP009: load on every rank."""

from __future__ import annotations

from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule


class LoadingRule(Rule):
    """`torch.load` becomes `ddp.load`; `load_state_dict` takes keys with and without `module.`."""

    id = "DDP009"
    title = "Load checkpoints onto each rank's device"
    effect = "loads checkpoints on every process"
    why = (
        "What was saved on a GPU must not land on rank 0's. `ddp.load` puts it onto this rank's device; every other "
        "argument is passed on. A whole `nn.DataParallel` that was saved comes back wrapped. The wrapped model's "
        "`load_state_dict` takes files with and without `module.` keys, so it stays as it is."
    )
    examples = (
        Example(
            before="""\
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
net.load_state_dict(torch.load("net.pt", weights_only=True))
net = net.module
""",
            after="""\
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp

net = nn.DataParallel(nn.Linear(4, 2))
net.load_state_dict(ddp.load("net.pt", weights_only=True))
net = net.module
""",
        ),
    )
    valid = (
        Example("""\
import copy
import json
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
best = copy.deepcopy(net.state_dict())
net.load_state_dict(best)  # from memory
with open("config.json") as file:  # nothing here writes it
    config = json.load(file)
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        if not facts.parallel:
            return
        for call in facts.source.calls:
            if facts.names.qualified(call.func) == "torch.load":
                reason = "lands on this rank's device"
                yield ReplaceExpr(self.id, facts.source.span(call.func), reason, "ddp.load")
