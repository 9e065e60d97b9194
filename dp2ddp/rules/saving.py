"""DDP008: save once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.roles import Wrapped
from dp2ddp.rewrite.edits import Finding, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule
from dp2ddp.source.nodes import argument


class SavingRule(Rule):
    """`torch.save` becomes `ddp.save`."""

    id = "DDP008"
    title = "Save checkpoints from rank 0, atomically"
    effect = "writes files once"
    parallel = True
    why = (
        "With one process per GPU, every rank would write the same file at the same time. `ddp.save` writes on "
        "rank 0 alone, to a temporary file that then takes the name, so nobody reads half a checkpoint. The keys "
        "stay as the original wrote them, `module.` included, so the original can still load the file; "
        "`--clean-keys` drops the prefix."
    )
    examples = (
        Example(
            before="""\
import shutil
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
torch.save({"model": net.state_dict()}, "last.pt")
shutil.copyfile("last.pt", "best.pt")
""",
            after="""\
import shutil
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp

net = nn.DataParallel(nn.Linear(4, 2))
ddp.save({"model": net.state_dict()}, "last.pt")
shutil.copyfile("last.pt", "best.pt")
""",
        ),
        Example(
            clean_keys=True,
            before="""\
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
torch.save({"model": net.state_dict(), "module": net.module.state_dict()}, "last.pt")
""",
            after="""\
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp

net = nn.DataParallel(nn.Linear(4, 2))
ddp.save({"model": net.module.state_dict(), "module": net.module.state_dict()}, "last.pt")
""",
        ),
    )
    valid = (
        Example("""\
import io
import os
import tempfile
import torch
import torch.nn as nn

net = nn.DataParallel(nn.Linear(4, 2))
buffer = io.BytesIO()
torch.save(net.state_dict(), buffer)  # in memory: each rank has its own
with tempfile.TemporaryDirectory() as folder:  # and a folder of its own
    path = os.path.join(folder, "net.pt")
    torch.save(net, path)
    print(len(buffer.getvalue()), os.path.getsize(path))
    os.remove(path)
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        span = facts.source.span
        for call in facts.source.calls:
            path = facts.names.qualified(call.func)
            if path == "torch.save":
                aside = call in facts.divergent.in_samples or facts.in_fetch(call)
                if not aside and not facts.files.is_own(argument(call, 1, "f")):
                    yield ReplaceExpr(self.id, span(call.func), "rank 0 alone writes it, atomically", "ddp.save")
            elif decisions.options.clean_keys and self._is_wrapped_state(facts, call):
                assert isinstance(call.func, ast.Attribute)
                model = call.func.value
                yield ReplaceExpr(
                    self.id, span(model), "keys without `module.`, as asked for", "__h_it__.module", {"it": span(model)}
                )

    def _is_wrapped_state(self, facts: Facts, call: ast.Call) -> bool:
        func = call.func
        return (
            isinstance(func, ast.Attribute) and func.attr == "state_dict" and facts.resolver.holds(func.value, Wrapped)
        )
