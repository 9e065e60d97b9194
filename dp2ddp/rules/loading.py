"""DDP009: load on every rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.files.readers import read_by
from dp2ddp.rewrite.edits import Finding, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule


class LoadingRule(Rule):
    """`torch.load` becomes `ddp.load`; `load_state_dict` takes keys with and without `module.`."""

    id = "DDP009"
    title = "Load checkpoints on every rank, after they are written"
    effect = "reads files once they are written"
    why = (
        "A rank must not read a checkpoint before rank 0 has finished it, and must not put it on rank 0's GPU. "
        "`ddp.load` waits for this rank's own earlier saves and lands on its device; every other argument is passed "
        "on. `ddp.written` waits in the same way for files of other kinds that the script reads back. The wrapped "
        "model's `load_state_dict` takes files with and without `module.` keys, so it stays as it is."
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
        Example(
            also=("DDP011",),
            before="""\
import numpy as np
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
np.save("mean.npy", np.zeros(4))
mean = np.load("mean.npy")
std = np.load("std.npy")
""",
            after="""\
import numpy as np
import torch.nn as nn
import dp2ddp_runtime as ddp

net = nn.DataParallel(nn.Linear(4, 2))
ddp.main_only(np.save)("mean.npy", np.zeros(4))
mean = np.load(ddp.written("mean.npy"))
std = np.load("std.npy")
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
                reason = "waits for its own saves, and lands on this rank's device"
                yield ReplaceExpr(self.id, facts.source.span(call.func), reason, "ddp.load")
            elif not facts.in_fetch(call) and call not in facts.alone.in_samples:
                yield from self._reading(facts, call)

    def _reading(self, facts: Facts, call: ast.Call) -> Iterator[Finding]:
        """Another file that the script writes itself, by rank 0, and reads back."""
        path = read_by(facts.names, call)
        if path is not None and not facts.files.is_own(path) and facts.files.may_be_written(path):
            span = facts.source.span(path)
            yield ReplaceExpr(self.id, span, "waits until rank 0 has written it", "ddp.written(__h_it__)", {"it": span})
