"""DDP007: report the numbers of all ranks."""

from __future__ import annotations

from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.proof import Reduction
from dp2ddp.edits import Finding, InsertAfter, Note, ReplaceExpr
from dp2ddp.rules.base import Example, Options, Rule

_TEMPLATES = {
    "mean": (
        'ddp.all_reduce(__h_it__, op="mean", over={over})',
        "the mean over the whole batch, not over this rank's shard",
    ),
    "sum": ("ddp.all_reduce(__h_it__, over={over})", "the number over all shards, where it is used"),
    "gather": ("ddp.gather(__h_it__, over={over})", "the samples of all shards, in the batch's order"),
    "weighted": (
        "ddp.weighted(__h_it__, over={over})",
        "this rank's share of the batch's mean; exact for a ragged last batch",
    ),
}


class MetricsRule(Rule):
    """In sharded loops, accumulators are reduced after the loop, and numbers where they are shown."""

    id = "DDP007"
    title = "Reduce metrics over the ranks"
    why = (
        "In a sharded loop each rank sees its part of the batch, so sums, counts and means are the shard's. They "
        "are reduced right after the loop, or where the loop shows them, to the number that the original reports. "
        "The gathered strategy needs none of this: there every rank computes on the whole batch."
    )
    examples = (
        Example(
            before="""\
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(100, 4), torch.zeros(100).long())
loader = DataLoader(data, batch_size=16)
net = nn.DataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    correct = total = 0
    running_loss = 0.0
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        correct += (out.argmax(1) == y).sum().item()
        total += y.size(0)
        if i % 2 == 0:
            print(i, loss.item(), correct)
    print(epoch, running_loss / len(loader), correct / total)
""",
            after="""\
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
import dp2ddp_runtime as ddp

data = TensorDataset(torch.randn(100, 4), torch.zeros(100).long())
loader = DataLoader(data, batch_size=16)
net = nn.DataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    correct = total = 0
    running_loss = 0.0
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        running_loss += ddp.weighted(loss.item(), over=loader)
        correct += (out.argmax(1) == y).sum().item()
        total += y.size(0)
        if i % 2 == 0:
            print(i, ddp.all_reduce(loss.item(), op="mean", over=loader), ddp.all_reduce(correct, over=loader))
    running_loss, correct, total = ddp.all_reduce(running_loss, correct, total, over=loader)
    print(epoch, running_loss / len(loader), correct / total)
""",
        ),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        if facts.strategy != "sharded":
            return
        for failure in facts.proof.failures:
            yield Note(
                self.id,
                facts.source.span(failure.node),
                f"not proved to train and report the same when sharded: {failure.reason}",
                "check this by hand, or leave out `--strategy sharded`",
            )
        for reduction in sorted(facts.proof.reductions, key=lambda r: facts.source.span(r.node)):
            yield self._edit(facts, reduction)

    def _edit(self, facts: Facts, reduction: Reduction) -> Finding:
        span = facts.source.span(reduction.node)
        if reduction.how == "after":
            names = ", ".join(reduction.names)
            line = f"{names} = ddp.all_reduce({names}, over={reduction.over})"
            return InsertAfter(self.id, span, "sums up what the ranks counted on their shards", [line])
        template, reason = _TEMPLATES[reduction.how]
        return ReplaceExpr(self.id, span, reason, template.format(over=reduction.over), {"it": span})
