"""DDP005: shard the loaders."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, InsertAfter, Note, ReplaceExpr
from dp2ddp.rules.base import Example, Options, Rule
from dp2ddp.source.nodes import argument, last_name

_REASON = "each rank loads its rows of each batch; the batches themselves don't change"
_MIXES = "each rank loads whole batches, as a `collate_fn` may mix rows"
_WHOLE = f"{_MIXES}, and computes on its own rows"
_TODO = (
    "if it makes each row alone, of tensors and plain values (none padded by others, none dropped), say `rows=True` "
    "(`--rows`: for all loaders)"
)
_PATH = re.compile(r"[\w.]+")  # `a` or `a.b`, which may be asked for twice
_STREAMS = frozenset({"torch.utils.data.IterableDataset", "torch.utils.data.dataset.IterableDataset"})
_ROWS = "each rank loads its rows of each batch, as `--rows` says that rows stay apart in its `collate_fn`"


class LoadersRule(Rule):
    """Each `DataLoader` is sharded: same batches, same order, same number of steps."""

    id = "DDP005"
    title = "Shard the loaders"
    effect = "splits batches over the processes"
    effects = ((_WHOLE, "loads whole batches in each process, which computes on its share"),)
    why = (
        "`DistributedSampler`, the usual way, pads the last batches, multiplies the batch size and shuffles "
        "differently. `ddp.shard_loader` splits the very batches that the original draws, so batch size, sampler, "
        "learning rate and `len(loader)` stay. Every `DataLoader` is sharded, and every class that derives from it. A "
        "`collate_fn` may mix rows, so with one each rank loads whole batches, unless you say that rows stay apart: "
        "`rows=True`."
    )
    examples = (
        Example(
            diff="""\
 import torch
 import torch.nn as nn
 from torch.utils.data import DataLoader, TensorDataset
+import dp2ddp_runtime as ddp

 data = TensorDataset(torch.randn(100, 4), torch.zeros(100).long())
 loader = DataLoader(data, batch_size=16,
                     shuffle=True)  # reshuffled every epoch
+loader = ddp.shard_loader(loader)
 net = nn.DataParallel(nn.Linear(4, 2))
 for x, y in loader:
     nn.functional.cross_entropy(net(x), y).backward()
"""
        ),
        Example(
            diff="""\
 import torch.nn as nn
 from torch.utils.data import DataLoader
+import dp2ddp_runtime as ddp

 class BaseLoader(DataLoader):
     def __init__(self, data, batch_size):
         self.name = "base"
         super().__init__(data, batch_size, shuffle=True)
+        ddp.shard_loader(self)

 def fit(loader, net):
     for x, y in loader:
         nn.functional.cross_entropy(net(x), y).backward()

 def make(config, module):
     return getattr(module, config["loader"])(**config["arguments"])

 net = nn.DataParallel(nn.Linear(4, 2))
"""
        ),
        Example(
            rows=True,
            diff="""\
 import torch
 import torch.nn as nn
 from boxes import Data, box_loss
 from torch.utils.data import DataLoader
+import dp2ddp_runtime as ddp

 def collate(samples):
     images, boxes = zip(*samples)
     return torch.stack(images), list(boxes)

-loader = DataLoader(Data(), 16, collate_fn=collate)
+loader = ddp.shard_loader(DataLoader(Data(), 16, collate_fn=collate), rows=True)
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

def size(loader: DataLoader) -> int:
    assert isinstance(loader, DataLoader)
    return len(loader)

net = nn.Linear(4, 2)
for step in range(10):  # made on every rank, alike: the model takes its rows
    nn.parallel.data_parallel(net, torch.randn(16, 4)).mean().backward()
"""),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        for call in facts.loaders.calls:
            collates = facts.loaders.collates(call)
            reason = _REASON if not collates else _ROWS if options.rows else _WHOLE
            yield self._sharded(facts, call, reason)
            size = getattr(argument(call, 1, "batch_size"), "value", None)
            if reason == _WHOLE and size != 1:  # of one there is nothing to share
                yield Note(self.id, facts.span(call), _MIXES, _TODO)
        for statement in facts.loaders.begun:
            yield InsertAfter(self.id, facts.span(statement), _REASON, ["ddp.shard_loader(self)"])
        for node in facts.loaders.values:
            what = f"`{facts.source.brief(node)}` is handed on here, and what it makes is not sharded"
            todo = "put `ddp.shard_loader(...)` around what it makes; until then each rank loads whole batches"
            yield Note(self.id, facts.span(node), what, todo)
        for kind in (node for node in facts.source.nodes if isinstance(node, ast.ClassDef)):
            if facts.classes.derives(kind, _STREAMS):
                what = "each rank loads whole batches of an `IterableDataset`, and computes on its own rows"
                yield Note(self.id, facts.span(kind), what, "to share the loading, make it a data set with indices")
        yield from _without(facts)

    def _sharded(self, facts: Facts, call: ast.Call, reason: str) -> Finding:
        """A call of several lines stays as it is, with a line behind it: around it, its lines would hang in the air."""
        span, above = facts.span(call), facts.source.parent(call)
        sharded = f"ddp.shard_loader(__h_it__{', rows=True' * (reason == _ROWS)})"
        if span.start.line < span.end.line and isinstance(above, ast.Assign) and len(above.targets) == 1:
            name = above.targets[0]
            if _PATH.fullmatch(ast.unparse(name)):
                line = f"__h_it__ = {sharded}"
                return InsertAfter(self.id, facts.span(above), reason, [line], {"it": facts.span(name)})
        return ReplaceExpr(self.id, span, reason, sharded, {"it": span})


def _without(facts: Facts) -> Iterator[Note]:
    """Started files in whose program no loader is found."""
    found = [*facts.loaders.calls, *facts.loaders.begun, *facts.loaders.values]
    trained = {facts.source.module(call) for call in facts.source.calls if last_name(call.func) == "backward"}
    for entry in facts.entries:
        reached = facts.names.reachable(entry)
        wraps = [call for call in facts.wraps.several if facts.source.module(call) in reached]
        is_fed = any(facts.source.module(node) in reached for node in found)
        if wraps and not is_fed and not trained.isdisjoint(reached):
            here = next((call for call in wraps if facts.source.module(call) is entry), wraps[0])
            what = "no `DataLoader` of torch's is found in this program: each rank loads whole batches"
            todo = "to share the loading, load by a `DataLoader`, and put `ddp.shard_loader(...)` around it"
            yield Note(LoadersRule.id, facts.span(here), what, todo)
