"""DDP018: decisions that depend on the clock."""

from __future__ import annotations

from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule


class QuestionsRule(Rule):
    """A branch that asks the clock, the log level or the terminal goes the way of rank 0 on every rank."""

    id = "DDP018"
    title = "Let rank 0 decide on time"
    effect = "lets one process decide for all"
    parallel = True
    why = (
        "Each rank has its own clock. Where it decides what the script does next, the ranks diverge, and wait for "
        "each other forever. `ddp.broadcast` gives all ranks rank 0's answer. No such call is added where a rank "
        "may be alone (exception handlers, data loader workers), or in branches that only show something. "
        "Questions about files need no edit: rank 0 answers them for all ranks."
    )
    examples = (
        Example(
            before="""\
import time
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
start = time.time()
for step in range(1000):
    net(torch.ones(8, 4)).sum().backward()
    if time.time() - start > 3600:
        break
""",
            after="""\
import time
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp

net = nn.DataParallel(nn.Linear(4, 2))
start = time.time()
for step in range(1000):
    net(torch.ones(8, 4)).sum().backward()
    if ddp.broadcast(time.time() - start > 3600):
        break
""",
        ),
    )
    valid = (
        Example("""\
import glob
import os
import time
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
if os.path.isfile("out/best.pt"):
    print(sorted(glob.glob("out/*.pt")))
shown = time.time()
for step in range(1000):
    net(torch.randn(8, 4)).sum().backward()
    if time.time() - shown > 5:  # only shows something
        print(step)
        shown = time.time()
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        for test in facts.own_tests.shared:
            if facts.on_all_ranks(test):
                span = facts.source.span(test)
                reason = "each rank has its own clock and terminal, and must not decide by it"
                yield ReplaceExpr(self.id, span, reason, "ddp.broadcast(__h_it__)", {"it": span})
