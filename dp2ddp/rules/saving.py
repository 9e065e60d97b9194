"""DDP008: save once."""

from __future__ import annotations

from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, ReplaceExpr
from dp2ddp.rules.base import Example, Options, Rule


class SavingRule(Rule):
    """`torch.save` becomes `ddp.save`."""

    id = "DDP008"
    title = "Save checkpoints from rank 0, atomically"
    effect = "writes files once"
    why = (
        "`ddp.save` writes on rank 0 alone, to a temporary file that then takes the name, so nobody reads half a "
        "checkpoint. The keys stay, `module.` included, so the original can still load the file. A plain `torch.save` "
        "is safe, too, after `ddp.setup`."
    )
    examples = (
        Example(
            diff="""\
 import shutil
 import torch
 import torch.nn as nn
+import dp2ddp_runtime as ddp

 net = nn.DataParallel(nn.Linear(4, 2))
-torch.save({"model": net.state_dict()}, "last.pt")
+ddp.save({"model": net.state_dict()}, "last.pt")
 shutil.copyfile("last.pt", "best.pt")
"""
        ),
    )
    valid = (
        Example("""\
import numpy as np
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
np.save("weights.npy", net.module.weight.detach().numpy())  # what Python writes is rank 0's anyway
net.load_state_dict(torch.load("last.pt"))
"""),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        for call in facts.calls(["torch.save"]):
            yield ReplaceExpr(self.id, facts.span(call.func), "rank 0 alone writes it, atomically", "ddp.save")
