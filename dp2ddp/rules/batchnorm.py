"""DDP014: BatchNorm."""

from __future__ import annotations

from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.edits import Finding
from dp2ddp.rules.base import Example, Options, Rule


class BatchNormRule(Rule):
    """BatchNorm works as under DataParallel; `--sync-bn` synchronises its statistics instead."""

    id = "DDP014"
    title = "Keep DataParallel's BatchNorm, or synchronise it"
    why = (
        "DataParallel normalises each replica's chunk on its own and keeps the first replica's running statistics. "
        "The wrapped model does just that. `--sync-bn` converts to SyncBatchNorm, whose statistics are the whole "
        "batch's: often better for small batches, but not what the original trained."
    )
    examples = (
        Example(
            also=("DDP002",),
            sync_bn=True,
            before="""\
import torch.nn as nn

net = nn.DataParallel(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
""",
            after="""\
import torch.nn as nn
import dp2ddp_runtime as ddp

net = ddp.wrap_model(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)), sync_bn=True)
""",
        ),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        yield from ()

    def wrap_keywords(self, facts: Facts, options: Options) -> dict[str, str]:
        return {"sync_bn": "True"} if options.sync_bn else {}
