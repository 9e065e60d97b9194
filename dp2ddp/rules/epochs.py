"""DDP006: tell the loaders the epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.loops import EpochLoop
from dp2ddp.edits import Finding, InsertBefore
from dp2ddp.rules.base import Example, Options, Rule


class EpochsRule(Rule):
    """`ddp.set_epoch(loader, epoch)` opens every epoch."""

    id = "DDP006"
    title = "Tell the loader which epoch begins"
    why = (
        "Samplers and datasets with a `set_epoch` draw each epoch anew only when they are told. The runtime also "
        "starts each rank's own random stream for augmentation and dropout here, so that a resumed run draws what "
        "the first one did."
    )
    examples = (
        Example(
            before="""\
import torch.nn as nn
from torch.utils.data import DataLoader

loader = DataLoader(range(10), batch_size=5)
net = nn.DataParallel(nn.Linear(1, 1))

def train(epoch):
    for x in loader:
        net(x).mean().backward()

for epoch in range(3):
    # one pass
    train(epoch)
""",
            after="""\
import torch.nn as nn
from torch.utils.data import DataLoader
import dp2ddp_runtime as ddp

loader = DataLoader(range(10), batch_size=5)
net = nn.DataParallel(nn.Linear(1, 1))

def train(epoch):
    for x in loader:
        net(x).mean().backward()

for epoch in range(3):
    ddp.set_epoch(loader, epoch)
    # one pass
    train(epoch)
""",
        ),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        if not facts.parallel:
            return
        told: set[tuple[ast.For, str]] = set()
        for loop in facts.model_loops:
            if not facts.loops.trains(loop):
                continue
            for epochs in facts.loops.epoch_loops(loop):
                if (epochs.node, epochs.loader) in told or self._built_inside(epochs):
                    continue
                told.add((epochs.node, epochs.loader))
                yield InsertBefore(
                    self.id,
                    facts.source.span(epochs.node.body[0]),
                    "starts the epoch: samplers and each rank's own random stream",
                    [f"ddp.set_epoch({epochs.loader}, {epochs.epoch})"],
                )

    def _built_inside(self, epochs: EpochLoop) -> bool:
        """Whether the loader is built anew in every epoch: then there is nothing to tell it yet."""
        root = epochs.loader.split(".")[0]
        stores = (n for n in ast.walk(epochs.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        return any(n.id == root for n in stores)
