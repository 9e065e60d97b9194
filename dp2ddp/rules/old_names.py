"""DDP021: names from before Python and PyTorch renamed them."""

from __future__ import annotations

from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Done, Finding
from dp2ddp.rules.base import Decisions, Example, Rule
from dp2ddp.source.spans import Span


class OldNamesRule(Rule):
    """`.cuda(async=True)` becomes `.cuda(non_blocking=True)`."""

    id = "DDP021"
    title = "Rename what has become a keyword"
    effect = "renames what has become a keyword"
    why = (
        "`async` is a keyword since Python 3.7, and PyTorch calls the argument `non_blocking` since 0.4. A script "
        "that says `async=True` is no Python any more, so it is renamed before anything else is read."
    )
    essential = True
    examples = (
        Example(
            also=("DDP002",),
            before="""\
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
x = torch.ones(3, 4).cuda(async=True)
""",
            after="""\
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp

net = ddp.wrap_model(nn.Linear(4, 2))
x = torch.ones(3, 4).cuda(non_blocking=True)
""",
        ),
    )
    valid = (
        Example("""\
import torch
import torch.nn as nn

async def fetch(url):  # Python's own `async`
    return url

net = nn.DataParallel(nn.Linear(4, 2))
x = torch.ones(3, 4).cuda(non_blocking=True)
print("was .cuda(async=True)")
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        for file in facts.source.files:
            for line, column in file.renamed:
                span = Span.of(file.before + line, column, file.before + line, column + len("async"))
                yield Done(self.id, span, "`async` is a keyword of Python now")
