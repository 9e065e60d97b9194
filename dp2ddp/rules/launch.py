"""DDP001: say where the processes may start."""

from __future__ import annotations

from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, InsertAfter, InsertBefore
from dp2ddp.rewrite.imports import last_import
from dp2ddp.rules.base import Example, Options, Rule

_REASON = "from here on this process can become the first of several"


class LaunchRule(Rule):
    """`ddp.setup()` on top of each started file whose program wraps a model, above the imports of its own modules."""

    id = "DDP001"
    title = "Say where the processes may start"
    effect = "lets the processes start"
    why = (
        "`ddp.setup()` starts nothing: it says that from here on this process can become the first of several. The "
        "others start when a model is wrapped for several GPUs. A run that wraps nothing stays one process. The call "
        "stands above the imports of the program's own modules: what these do while they are imported, such as "
        "opening a log, is rank 0's, too. With `--allow-ddp` it leaves runs alone in which the script sets up DDP "
        "itself."
    )
    essential = True
    examples = (
        Example(
            diff="""\
 import argparse
 import os

 import torch.nn as nn
+import dp2ddp_runtime as ddp
+
+ddp.setup()

 parser = argparse.ArgumentParser()
 args = parser.parse_args()
 os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
 net = nn.DataParallel(nn.Linear(4, 2), device_ids=[0, 1])
"""
        ),
        Example(
            diff="""\
 import os
 os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"
 import torch.nn as nn
+import dp2ddp_runtime as ddp
+
+ddp.setup()

 def main():
     net = nn.DataParallel(nn.Linear(4, 2))

 if __name__ == "__main__":
     main()
"""
        ),
        Example(
            allow_ddp=True,
            also=("DDP002",),
            diff="""\
 import argparse
 import torch.distributed as dist
 import torch.nn as nn
+import dp2ddp_runtime as ddp
+
+ddp.setup(beside_ddp=True)

 parser = argparse.ArgumentParser()
 parser.add_argument("--distributed", action="store_true")
 args = parser.parse_args()

 net = nn.Linear(4, 2)
 if args.distributed:
     dist.init_process_group("nccl")
     net = nn.parallel.DistributedDataParallel(net.cuda())
 else:
-    net = nn.DataParallel(net).cuda()
+    net = ddp.wrap_model(net).cuda()
""",
        ),
    )
    valid = (
        Example("""\
import torch
import torch.nn as nn

net = torch.load("net.pt", weights_only=False)
if isinstance(net, nn.DataParallel):  # nothing is wrapped here: one process, as before
    net = net.module
"""),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        line = f"ddp.setup({'beside_ddp=True' * facts.beside_ddp})"
        for entry in (each for each in facts.entries if each.body):
            top = last_import(entry, facts.brings_own)
            below = entry.body[0 if top is None else entry.body.index(top) + 1 :][:1]
            is_close = any(each.lineno <= (each.lineno if top is None else top.end_lineno or 0) + 1 for each in below)
            lines = [line, *[""] * (is_close and facts.brings_own(below[0]))]
            insert, place = (InsertBefore, entry.body[0]) if top is None else (InsertAfter, top)
            yield insert(self.id, facts.span(place), _REASON, ["", *lines])
