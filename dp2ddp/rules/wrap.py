"""DDP002: wrap the model."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, Note, RemoveStatement, ReplaceExpr, ReplaceStatement
from dp2ddp.rules.base import Example, Options, Rule

_REASON = "one replica per process; gradients are summed, buffers are rank 0's"
_UNUSED = "`DataParallel` is not used any more"


class WrapRule(Rule):
    """`nn.DataParallel(model, ...)` becomes `ddp.wrap_model(model)`, whatever guard stands around it."""

    id = "DDP002"
    title = "Wrap the model in DistributedDataParallel"
    effect = "wraps the model: one replica in each process"
    effects = ((_UNUSED, "takes away what nobody uses any more"),)
    why = (
        "`ddp.wrap_model` runs the model on this rank's rows of the batch, returns the outputs for all of it, and "
        "sums gradients over the ranks. BatchNorm, unused parameters and state dict keys behave as under "
        "DataParallel. All arguments and guards stay: `device_ids` say how many processes there are, and where the "
        "original does not wrap, neither does the converted script."
    )
    essential = True
    examples = (
        Example(
            diff="""\
 import torch.nn as nn
+import dp2ddp_runtime as ddp

-net = nn.DataParallel(nn.Linear(4, 2), device_ids=[0, 1]).cuda()
+net = ddp.wrap_model(nn.Linear(4, 2), device_ids=[0, 1]).cuda()
"""
        ),
        Example(
            diff="""\
 import torch
 import torch.nn as nn
+import dp2ddp_runtime as ddp

 net = nn.Linear(4, 2)
 if torch.cuda.device_count() > 1:
-    net = nn.DataParallel(net)
+    net = ddp.wrap_model(net)
 net.to("cuda")
"""
        ),
        Example(
            diff="""\
 import torch
-from torch.nn import DataParallel as DP, Linear
+from torch.nn import Linear
+import dp2ddp_runtime as ddp

 class Trainer:
     def __init__(self, gpus):
         net = Linear(4, 2)
         if len(gpus) > 1:
-            self.net = DP(net, gpus).cuda()
+            self.net = ddp.wrap_model(net, gpus).cuda()
         else:
             self.net = net.cuda()
"""
        ),
        Example(
            diff="""\
 import torch.nn as nn
+import dp2ddp_runtime as ddp

-class Open(nn.DataParallel):
+class Open(ddp.WrappedModel):
     def __getattr__(self, name):
         try:
             return super().__getattr__(name)
         except AttributeError:
             return getattr(self.module, name)

-wrappers = {"open": Open, "plain": nn.DataParallel}
+wrappers = {"open": Open, "plain": ddp.WrappedModel}
 net = wrappers["open"](nn.Linear(4, 2))
"""
        ),
    )
    valid = (
        Example("""\
import torch
import torch.nn as nn

net = nn.Linear(4, 2)
out = nn.parallel.data_parallel(net, torch.ones(8, 4))  # wraps nothing: DDP017
optimizer = nn.DataParallel(torch.optim.SGD(net.parameters(), lr=0.1))  # no model: DDP003
"""),
        Example("""\
import torch.nn as nn
from torch_geometric.nn import DataParallel

# Another contract: it takes lists of graphs. DDP016 says so.
net = DataParallel(nn.Linear(4, 2))
"""),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        for call in facts.wraps.models:
            yield self._in_place(facts, call, options)
        for value in facts.wraps.values:
            if options.sync_bn:
                yield Note(
                    self.id,
                    facts.span(value),
                    "`DataParallel` is handed on here, and takes no sync_bn",
                    "wrap the model by a plain call of `nn.DataParallel`, then convert again",
                )
            yield ReplaceExpr(self.id, facts.span(value), "takes `DataParallel`'s arguments", "ddp.WrappedModel")
        yield from self._unused_imports(facts)

    def _in_place(self, facts: Facts, call: ast.Call, options: Options) -> Finding:
        """The function alone is another one, which takes the same arguments."""
        if not options.sync_bn:
            return ReplaceExpr(self.id, facts.span(call.func), _REASON, "ddp.wrap_model")
        given = [("*", each.value) if isinstance(each, ast.Starred) else ("", each) for each in call.args]
        given += [(f"{each.arg}=" if each.arg else "**", each.value) for each in call.keywords]
        holes = {str(number): facts.span(value) for number, (_, value) in enumerate(given)}
        texts = (f"{before}__h_{number}__, " for number, (before, _) in enumerate(given))
        text = f"ddp.wrap_model({''.join(texts)}sync_bn=True)"
        return ReplaceExpr(self.id, facts.span(call), _REASON, text, holes)

    def _unused_imports(self, facts: Facts) -> Iterator[Finding]:
        """`from torch.nn import DataParallel` has no use once every wrap is converted."""
        converted = {call.func for call in (*facts.wraps.models, *facts.wraps.optimizers)}
        converted.update(facts.wraps.values, facts.wraps.type_checks)
        imports = [each for each in facts.source.nodes if isinstance(each, ast.ImportFrom)]
        found = ((each, facts.source.imported(each, each.module or "", each.level)) for each in imports)
        taken = {(module, alias.name) for each, module in found for alias in each.names}  # by other files
        for node in imports:
            module = facts.source.module(node)
            for alias in (each for each in node.names if each.name == "DataParallel"):
                local = alias.asname or alias.name
                uses = [n for n in ast.walk(module) if isinstance(n, ast.Name) and n.id == local]
                said = (n for n in ast.walk(module) if isinstance(n, ast.Constant) and n.value == local)  # `__all__`
                is_ours = (module, local) not in taken and not any(said)
                if uses and is_ours and all(u in converted for u in uses):
                    yield from self._without(facts, node, alias)

    def _without(self, facts: Facts, node: ast.ImportFrom, alias: ast.alias) -> Iterator[Finding]:
        span = facts.span(node)
        others = [each for each in node.names if each is not alias]
        if not others:
            yield RemoveStatement(self.id, span, _UNUSED)
        elif facts.source.segment(node) == ast.unparse(node):  # in one line, as most are written
            kept = ast.ImportFrom(node.module, others, node.level)
            yield ReplaceStatement(self.id, span, _UNUSED, [ast.unparse(kept)])
