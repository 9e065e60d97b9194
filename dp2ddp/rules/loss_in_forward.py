"""DDP013: models that compute their loss."""

from __future__ import annotations

from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.edits import Finding
from dp2ddp.rules.base import Example, Options, Rule


class LossInForwardRule(Rule):
    """A model that returns its loss is gathered: the script sees one loss per replica, as under DataParallel."""

    id = "DDP013"
    title = "Keep the losses that the replicas return"
    why = (
        "A model that computes its loss in `forward` returns one number per replica, and DataParallel hands the "
        "script a vector of them. The mean of replicas' means is not the mean over the batch when the batch splits "
        "unevenly, so the vector is kept: gathered outputs make `loss.mean()` and `loss.sum()` mean what they "
        "meant."
    )
    examples = (
        Example(
            also=("DDP002",),
            before="""\
import torch.nn as nn
from torch.utils.data import DataLoader

class WithLoss(nn.Module):
    def forward(self, x, y):
        return nn.functional.mse_loss(x, y)

loader = DataLoader([(1.0, 2.0)] * 7, batch_size=3)
net = nn.DataParallel(WithLoss())
for x, y in loader:
    loss = net(x, y)
    loss.mean().backward()
""",
            after="""\
import torch.nn as nn
from torch.utils.data import DataLoader
import dp2ddp_runtime as ddp

class WithLoss(nn.Module):
    def forward(self, x, y):
        return nn.functional.mse_loss(x, y)

loader = DataLoader([(1.0, 2.0)] * 7, batch_size=3)
net = ddp.wrap_model(WithLoss(), gather=True)
for x, y in loader:
    loss = net(x, y)
    loss.mean().backward()
""",
        ),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        # The strategy does the work: the proof of sharding ends where a model returns a loss.
        yield from ()
