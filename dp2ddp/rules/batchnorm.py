"""DDP014: BatchNorm."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, Note, RemoveStatement
from dp2ddp.rules.base import Example, Options, Rule


class BatchNormRule(Rule):
    """BatchNorm works as under DataParallel; `--sync-bn` synchronises its statistics instead."""

    id = "DDP014"
    title = "Keep DataParallel's BatchNorm, or synchronise it"
    effect = "keeps or synchronises BatchNorm"
    why = (
        "DataParallel normalises each replica's chunk on its own and keeps the first replica's running statistics. "
        "The wrapped model does just that. `--sync-bn` takes the whole batch's statistics: often better for small "
        "batches, but not what the original trained. Packages that synchronise BatchNorm by patching DataParallel's "
        "replicas are replaced with `--sync-bn`, and refused without it; a copy of one in the project does what it did."
    )
    examples = (
        Example(
            also=("DDP002",),
            sync_bn=True,
            diff="""\
 import torch.nn as nn
 from sync_batchnorm import SynchronizedBatchNorm1d, patch_replication_callback
+import dp2ddp_runtime as ddp

-net = nn.DataParallel(nn.Sequential(nn.Linear(4, 2), SynchronizedBatchNorm1d(2)))
-patch_replication_callback(net)
+net = ddp.wrap_model(nn.Sequential(nn.Linear(4, 2), SynchronizedBatchNorm1d(2)), sync_bn=True)
""",
        ),
    )
    valid = (
        Example("""\
import torch.nn as nn

# Without --sync-bn each rank normalises its own chunk, as each replica did.
net = nn.DataParallel(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
"""),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        for call in facts.replicas.patches if options.sync_bn else ():
            span, name = facts.source.span(call), facts.source.brief(call.func)
            removed: ast.AST = facts.source.statement(call)
            choice = facts.source.parent(removed)
            if isinstance(choice, ast.If) and choice.body == [removed] and not choice.orelse:
                removed = choice
            yield RemoveStatement(self.id, facts.source.span(removed), "there are no replicas")
            yield Note(
                self.id,
                span,
                f"`{name}` synchronised the BatchNorm layers that are made for it; now torch's SyncBatchNorm takes the "
                "place of all BatchNorm layers of the model, on each run, and rounds in another way",
                "check that no other BatchNorm layer is to keep each replica's own statistics",
            )
