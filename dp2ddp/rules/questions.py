"""DDP018: decisions that depend on files or on the clock."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule


class QuestionsRule(Rule):
    """A branch that asks whether a file exists goes the way of rank 0 on every rank; a list of files is rank 0's."""

    id = "DDP018"
    title = "Let rank 0 decide on files and time"
    effect = "lets one process decide for all"
    why = (
        "Rank 0 writes the files, so another rank may ask for one a moment before it is there, or a moment after: the "
        "ranks would diverge, and wait for each other for ever. Files may be listed in another order, or be others, "
        "and branches on the time make ranks diverge, too. `ddp.broadcast` gives all ranks rank 0's answer. Nobody "
        "asks where a rank may be alone (handlers of exceptions, data loader workers) or for each of many files, or in "
        "branches that only make a folder or show something."
    )
    examples = (
        Example(
            before="""\
import os
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
if os.path.isfile("out/best.pt"):
    net.load_state_dict(torch.load("out/best.pt"))
""",
            after="""\
import os
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp

net = nn.DataParallel(nn.Linear(4, 2))
if ddp.broadcast(os.path.isfile("out/best.pt")):
    net.load_state_dict(torch.load("out/best.pt"))
""",
        ),
        Example(
            before="""\
import glob
import time
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
start = time.time()
for path in sorted(glob.glob("out/*.pt")):
    net.load_state_dict(torch.load(path))
    print(path, net(torch.ones(8, 4)).mean())
    if time.time() - start > 3600:
        break
""",
            after="""\
import glob
import time
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp

net = nn.DataParallel(nn.Linear(4, 2))
start = time.time()
for path in ddp.broadcast(sorted(glob.glob("out/*.pt"))):
    net.load_state_dict(torch.load(path))
    print(path, net(torch.ones(8, 4)).mean())
    if ddp.broadcast(time.time() - start > 3600):
        break
""",
        ),
    )
    valid = (
        Example("""\
import os
import time
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
if not os.path.isdir("out"):
    os.makedirs("out")
shown = time.time()
for step in range(1000):
    net(torch.randn(8, 4)).sum().backward()
    if time.time() - shown > 5:  # only shows something
        print(step)
        shown = time.time()
"""),
        Example("""\
import os
import torch
import torch.nn as nn
from torch.utils.data import Dataset

class Faces(Dataset):
    def __getitem__(self, index):
        path = f"{index}.pt"  # asked for by the one rank that loads the sample
        return torch.load(path) if os.path.exists(path) else torch.zeros(4)

net = nn.DataParallel(nn.Linear(4, 2))
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        if not facts.parallel:
            return
        for call in facts.source.calls:
            if self._decides(facts, call) and facts.on_all_ranks(call):
                span = facts.source.span(call)
                reason = "the ranks must decide alike"
                yield ReplaceExpr(self.id, span, reason, "ddp.broadcast(__h_it__)", {"it": span})
        for whole, lazy in facts.told_listings:
            span = facts.source.span(whole)
            template = "ddp.broadcast(list(__h_it__))" if lazy else "ddp.broadcast(__h_it__)"
            yield ReplaceExpr(self.id, span, "the ranks must go over the same files", template, {"it": span})
        for test in facts.own_tests.shared:
            if facts.on_all_ranks(test):
                span = facts.source.span(test)
                reason = "the ranks' own clocks and terminals must not part them"
                yield ReplaceExpr(self.id, span, reason, "ddp.broadcast(__h_it__)", {"it": span})

    def _decides(self, facts: Facts, call: ast.Call) -> bool:
        """Whether a call's answer about a file decides a branch that all ranks have to take alike."""
        if not facts.listings.is_question(call) or facts.is_told(call):
            return False
        node: ast.AST = call
        for above in facts.source.ancestors(call):
            if isinstance(above, (ast.If, ast.While)):
                return above.test is node and above not in facts.own_tests.branches
            if isinstance(above, ast.IfExp):
                return above.test is node
            if isinstance(above, ast.stmt):
                return False
            node = above
        return False
