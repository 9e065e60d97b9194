"""DDP005: shard the loaders."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.collating import only_stacks_columns
from dp2ddp.analysis.control.loops import is_path
from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.roles.libraries import loads_whole_batches
from dp2ddp.rewrite.edits import Edit, Finding, InsertAfter, Note, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule

_REASON = "each rank loads its rows of each batch; the batches themselves don't change"
_WHOLE = "each rank loads whole batches, as a `collate_fn` may mix rows, and computes on its own rows"
_ROWS = "each rank loads its rows of each batch, as `--rows` says that rows stay apart in its `collate_fn`"


class LoadersRule(Rule):
    """Each `DataLoader` that feeds the wrapped model is sharded: same batches, same order, same number of steps."""

    id = "DDP005"
    title = "Shard the loaders that feed the model"
    effect = "splits batches over the processes"
    parallel = True
    why = (
        "`DistributedSampler`, the usual way, pads the last batches, multiplies the batch size and shuffles "
        "differently. `ddp.shard_loader` splits the very batches that the original draws, so batch size, sampler, "
        "learning rate and `len(loader)` stay as they are. A function that isn't known, such as a package's loss, "
        "is assumed to call the model that it gets together with a batch. A `collate_fn` may mix rows, so with one "
        "each rank loads whole batches, unless you say that rows stay apart: `rows=True`, which is checked as it runs."
    )
    examples = (
        Example(
            before="""\
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(100, 4), torch.zeros(100).long())
loader = DataLoader(data, batch_size=16,
                    shuffle=True)  # reshuffled every epoch
net = nn.DataParallel(nn.Linear(4, 2))
for x, y in loader:
    nn.functional.cross_entropy(net(x), y).backward()
""",
            after="""\
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
import dp2ddp_runtime as ddp

data = TensorDataset(torch.randn(100, 4), torch.zeros(100).long())
loader = DataLoader(data, batch_size=16,
                    shuffle=True)  # reshuffled every epoch
loader = ddp.shard_loader(loader)
net = nn.DataParallel(nn.Linear(4, 2))
for x, y in loader:
    nn.functional.cross_entropy(net(x), y).backward()
""",
        ),
        Example(
            before="""\
import torch.nn as nn
from zoo import make_loader

loader = make_loader(64)
net = nn.DataParallel(nn.Linear(4, 2))
for epoch in range(3):
    for x, y in loader:
        nn.functional.cross_entropy(net(x), y).backward()
""",
            after="""\
import torch.nn as nn
from zoo import make_loader
import dp2ddp_runtime as ddp

loader = make_loader(64)
net = nn.DataParallel(nn.Linear(4, 2))
for epoch in range(3):
    for x, y in ddp.shard_loader(loader):
        nn.functional.cross_entropy(net(x), y).backward()
""",
        ),
        Example(
            rows=True,
            before="""\
import torch
import torch.nn as nn
from boxes import Data, box_loss
from torch.utils.data import DataLoader

def collate(samples):
    images, boxes = zip(*samples)
    return torch.stack(images), list(boxes)

loader = DataLoader(Data(), 16, collate_fn=collate)
net = nn.DataParallel(nn.Conv2d(3, 4, 3))
for images, boxes in loader:
    box_loss(net(images), boxes).backward()
""",
            after="""\
import torch
import torch.nn as nn
from boxes import Data, box_loss
from torch.utils.data import DataLoader
import dp2ddp_runtime as ddp

def collate(samples):
    images, boxes = zip(*samples)
    return torch.stack(images), list(boxes)

loader = ddp.shard_loader(DataLoader(Data(), 16, collate_fn=collate), rows=True)
net = nn.DataParallel(nn.Conv2d(3, 4, 3))
for images, boxes in loader:
    box_loss(net(images), boxes).backward()
""",
        ),
    )
    valid = (
        Example("""\
import torch
import torch.nn as nn
from torch.utils.data import DataLoader

data = torch.randn(100, 4)
mean = 0
for x in DataLoader(data, batch_size=50):  # feeds no model
    mean += x.sum(0) / len(data)
net = nn.DataParallel(nn.Linear(4, 2))
for step in range(10):  # made on every rank, alike: the model takes its rows
    net(torch.randn(16, 4) + mean).mean().backward()
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        for site in facts.loader_sites:
            rows = decisions.options.rows and loads_whole_batches(site)
            yield self._sharded(facts, site, rows=rows)
            if not rows and only_stacks_columns(facts, site):
                what = "every process loads whole batches, as a `collate_fn` may mix rows"
                todo = (
                    "this one seems to stack columns only: with `rows=True` here (or `--rows`) each loads its own rows"
                )
                yield Note(self.id, facts.source.span(site), what, f"{todo}, checked as it runs")
        for iterated in facts.foreign_loaders:
            span = facts.source.span(iterated)
            reason = "built elsewhere, so it is sharded where it is used; the batches themselves don't change"
            yield ReplaceExpr(self.id, span, reason, "ddp.shard_loader(__h_it__)", {"it": span})

    def effect_of(self, edit: Edit) -> str:
        """What becomes of a loader."""
        return (
            "loads whole batches in each process, which computes on its share" if edit.reason == _WHOLE else self.effect
        )

    def _sharded(self, facts: Facts, site: ast.Call, *, rows: bool) -> Finding:
        """A call of several lines stays as it is, with a line behind it: around it, its lines would hang in the air."""
        span, above = facts.source.span(site), facts.source.parent(site)
        reason = _ROWS if rows else _WHOLE if loads_whole_batches(site) else _REASON
        more = ", rows=True" * rows
        if span.start.line < span.end.line and isinstance(above, ast.Assign) and len(above.targets) == 1:
            name = above.targets[0]
            if is_path(name):
                line = f"{facts.source.segment(name)} = ddp.shard_loader({facts.source.segment(name)}{more})"
                return InsertAfter(self.id, facts.source.span(above), reason, [line])
        return ReplaceExpr(self.id, span, reason, f"ddp.shard_loader(__h_it__{more})", {"it": span})
