"""DDP006: tell the loaders the epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.control.epochs import EpochLoop
from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, InsertBefore
from dp2ddp.rules.base import Decisions, Example, Rule


class EpochsRule(Rule):
    """`ddp.set_epoch(loader, epoch)` opens every epoch."""

    id = "DDP006"
    title = "Tell the loader which epoch begins"
    effect = "tells the loaders which epoch begins"
    why = (
        "Samplers and datasets with a `set_epoch` draw each epoch anew only when they are told. The runtime also "
        "starts this rank's own stream for loading here, so that a resumed run augments its samples as the first one "
        "did. A script that calls `set_epoch` itself is left alone."
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
    valid = (
        Example("""\
import torch.nn as nn
from samplers import Balanced
from torch.utils.data import DataLoader

sampler = Balanced(range(10))
loader = DataLoader(range(10), batch_size=5, sampler=sampler)
net = nn.DataParallel(nn.Linear(1, 1))
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x in loader:
        net(x).mean().backward()
"""),
        Example("""\
import torch.nn as nn
from torch.utils.data import DataLoader

net = nn.DataParallel(nn.Linear(1, 1))
for fold in range(3):
    # A new loader each time: there is none yet that could be told.
    loader = DataLoader(range(fold, 10), batch_size=5)
    for x in loader:
        net(x).mean().backward()
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        if not facts.parallel or facts.source.mentions("set_epoch"):
            return  # a script that has a `set_epoch` of its own calls it when it wants to
        told: set[tuple[ast.For, str]] = set()
        for loop in facts.model_loops:
            if not facts.loops.trains(loop):
                continue
            for epochs in facts.epochs.around(loop):
                if (epochs.node, epochs.loader) in told or self._built_inside(facts, epochs):
                    continue
                told.add((epochs.node, epochs.loader))
                yield InsertBefore(
                    self.id,
                    facts.source.span(epochs.node.body[0]),
                    "starts the epoch: samplers, and each rank's own random stream for loading",
                    [f"ddp.set_epoch({epochs.loader}, {epochs.epoch})"],
                )

    def _built_inside(self, facts: Facts, epochs: EpochLoop) -> bool:
        """Whether the loader is built, or chosen, within the epoch: then there is nothing to tell it yet."""
        path = ast.parse(epochs.loader, mode="eval").body
        named = {n.id for n in ast.walk(path) if isinstance(n, ast.Name)}
        attribute = path.attr if isinstance(path, ast.Attribute) else None
        here = set(ast.walk(epochs.node))
        for node in facts.loops.reached(*epochs.node.body):
            if not isinstance(getattr(node, "ctx", None), ast.Store):
                continue
            if isinstance(node, ast.Name) and node.id in named and (node in here or self._is_shared(facts, node)):
                return True
            if isinstance(node, ast.Attribute) and node.attr == attribute:
                return True
        return False

    def _is_shared(self, facts: Facts, node: ast.Name) -> bool:
        """Whether a function binds the name for others, too (`global`, `nonlocal`)."""
        function = facts.source.function(node)
        inner = ast.walk(function) if function is not None else ()
        return any(isinstance(n, (ast.Global, ast.Nonlocal)) and node.id in n.names for n in inner)
