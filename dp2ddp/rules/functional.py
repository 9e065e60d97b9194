"""DDP017: the functional form."""

from __future__ import annotations

from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, RemoveStatement, ReplaceExpr
from dp2ddp.rules.base import Example, Options, Rule

_REASON = "splits the inputs over the ranks and gathers the outputs"
_STEP = "is `ddp.data_parallel`'s"


class FunctionalRule(Rule):
    """`nn.parallel.data_parallel(module, inputs, ids)` becomes `ddp.data_parallel(module, inputs, ids)`."""

    id = "DDP017"
    title = "Run the functional form over the ranks"
    effect = "wraps the model: one replica in each process"
    effects = ((_STEP, "takes away what nobody uses any more"),)
    why = (
        "`nn.parallel.data_parallel` copies the module to all devices in each call. `ddp.data_parallel` splits the "
        "inputs over the ranks and gathers the outputs; the module's gradients are summed from its first call on. "
        "Keys of checkpoints stay, as the module itself isn't wrapped. Guards stay: where one is false, every rank "
        "computes the same."
    )
    essential = True
    examples = (
        Example(
            diff="""\
 import torch.nn as nn
 import torch.nn.parallel
+import dp2ddp_runtime as ddp

 class Generator(nn.Module):
     def __init__(self, ngpu):
         super().__init__()
         self.ngpu = ngpu
         self.main = nn.Linear(4, 2)

     def forward(self, x):
         if x.is_cuda and self.ngpu > 1:
-            return nn.parallel.data_parallel(self.main, x, range(self.ngpu))
+            return ddp.data_parallel(self.main, x, range(self.ngpu))
         return self.main(x)
"""
        ),
        Example(
            diff="""\
 import torch.nn as nn
+import dp2ddp_runtime as ddp

 def data_parallel(module, input, device_ids, output_device):
     if not device_ids:
         return module(input)
-    replicas = nn.parallel.replicate(module, device_ids)
-    inputs = nn.parallel.scatter(input, device_ids)
-    replicas = replicas[:len(inputs)]
-    outputs = nn.parallel.parallel_apply(replicas, inputs)
-    return nn.parallel.gather(outputs, output_device)
+    return ddp.data_parallel(module, input)
"""
        ),
    )
    valid = (
        Example("""\
import torch.nn as nn

def data_parallel(net, ids):  # the script's own: its wrap is DDP002's
    return nn.DataParallel(net, ids)

net = data_parallel(nn.Linear(4, 2), [0, 1])
"""),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        for call in facts.wraps.functional:
            written = facts.wraps.written_out.get(call)
            if written is None:
                yield ReplaceExpr(self.id, facts.span(call.func), _REASON, "ddp.data_parallel")
            else:
                yield from (RemoveStatement(self.id, facts.span(each), _STEP) for each in written.steps)
                given = [facts.source.segment(written.module), facts.source.segment(written.inputs)]
                yield ReplaceExpr(self.id, facts.span(call), _REASON, f"ddp.data_parallel({', '.join(given)})")
