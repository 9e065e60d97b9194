"""DDP001: say where the processes may start."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, InsertAfter, InsertBefore
from dp2ddp.rules.base import Example, Options, Rule
from dp2ddp.source.nodes import is_main_guard

_REASON = "from here on this process can become the first of several"
#: What may stand between imports: settings that have to come before the next one.
_SETTINGS = ("sys.", "os.environ", "os.putenv", "warnings.", "matplotlib.use", "builtins.print")


class LaunchRule(Rule):
    """`ddp.setup()` on top of each started file whose program wraps a model, above the imports of its own modules."""

    id = "DDP001"
    title = "Say where the processes may start"
    effect = "lets the processes start"
    why = (
        "`ddp.setup()` starts nothing: it says that from here on this process can become the first of several. The "
        "others start when a model is wrapped for several GPUs; then it is known which, whatever option or variable "
        "says so. A run that wraps nothing stays the single process that it was. So it has no arguments, and always "
        "stands on top of the started file, behind the imports of libraries and above those of the program's own "
        "modules: what these do while they are imported, such as opening a log, is rank 0's, too. With `--allow-ddp` "
        "it leaves runs alone in which the script sets up DDP itself."
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
            top = _top(facts, entry)
            below = entry.body[0 if top is None else entry.body.index(top) + 1 :][:1]
            is_close = any(each.lineno <= (each.lineno if top is None else top.end_lineno or 0) + 1 for each in below)
            lines = [line, *[""] * (is_close and facts.brings_own(below[0]))]
            if top is None:
                yield InsertBefore(self.id, facts.span(entry.body[0]), _REASON, ["", *lines])
            else:
                yield InsertAfter(self.id, facts.span(top), _REASON, ["", *lines])


def _top(facts: Facts, entry: ast.Module) -> ast.stmt | None:
    """The last of the imports of libraries on top of a file; else its docstring; None where it has neither."""
    found = None
    for statement in entry.body:
        if facts.brings_own(statement):
            break
        if _holds_imports(facts, statement) or (found is None and _is_text(statement)):
            found = statement
        elif not _is_setting(facts, statement):
            break
    return found


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _holds_imports(facts: Facts, statement: ast.stmt) -> bool:
    """Whether it is an import, or chooses between imports (`try`, `if`) and does nothing else."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return True
    if not isinstance(statement, (ast.Try, ast.If)) or is_main_guard(statement):
        return False
    others = [each for each in statement.body if not _is_setting(facts, each)]
    return bool(others) and all(_holds_imports(facts, each) for each in others)


def _is_setting(facts: Facts, statement: ast.stmt) -> bool:
    """Whether it only sets something up for the imports below: `os.environ[...] = ...`, `sys.path.append(...)`."""
    if _is_text(statement):
        return True
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return (facts.qualified(statement.value.func) or "").startswith(_SETTINGS)
    if not isinstance(statement, ast.Assign):
        return False
    calls = [n for n in ast.walk(statement.value) if isinstance(n, ast.Call)]
    return all((facts.qualified(n.func) or "").startswith(("os.", "sys.", "pathlib.", "builtins.")) for n in calls)
