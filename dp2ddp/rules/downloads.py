"""DDP012: download once."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Decorate, Finding, Note, ReplaceExpr, WrapStatement
from dp2ddp.rules.base import Decisions, Example, Rule
from dp2ddp.source.program import FunctionNode

_IN_TURN = "ddp.main_first()"
_HEADER = f"with {_IN_TURN}:"


class DownloadsRule(Rule):
    """ "If it is missing, fetch it" is one step, of one rank of each machine; the others then find the files."""

    id = "DDP012"
    title = "Download on one rank of each machine"
    effect = "downloads once on each machine"
    parallel = True
    why = (
        "All ranks would download the same archive at once and unpack it over one another. Under `ddp.main_first()` "
        "the first rank of each machine runs the block alone, then the others, which find that nothing is missing. "
        "Where the script doesn't look, they skip what fetches, or they would write over what the first one reads."
    )
    examples = (
        Example(
            before="""\
import torch.nn as nn
from torchvision import datasets

net = nn.DataParallel(nn.Linear(4, 2))
train_set = datasets.MNIST("data", download=True)  # 60,000 digits
""",
            after="""\
import torch.nn as nn
from torchvision import datasets
import dp2ddp_runtime as ddp

net = nn.DataParallel(nn.Linear(4, 2))
with ddp.main_first():
    train_set = datasets.MNIST("data", download=True)  # 60,000 digits
""",
        ),
        Example(
            before="""\
import os
import torch.nn as nn
from urllib.request import urlretrieve

net = nn.DataParallel(nn.Linear(4, 2))
if not os.path.exists("vgg.pth"):
    urlretrieve("https://example.com/vgg.pth", "vgg.pth")
urlretrieve("https://example.com/names.txt", "names.txt")
""",
            after="""\
import os
import torch.nn as nn
from urllib.request import urlretrieve
import dp2ddp_runtime as ddp

net = nn.DataParallel(nn.Linear(4, 2))
with ddp.main_first():
    if not os.path.exists("vgg.pth"):
        urlretrieve("https://example.com/vgg.pth", "vgg.pth")
    ddp.main_only(urlretrieve)("https://example.com/names.txt", "names.txt")
""",
        ),
    )
    valid = (
        Example("""\
import torch.nn as nn
from torchvision import datasets, models
from urllib.request import urlopen

train_set = datasets.MNIST("data")  # reads, downloads nothing
names = urlopen("https://example.com/names.txt").read().split()  # writes no file
# torch.hub itself moves the file into place when it is whole.
net = nn.DataParallel(models.resnet18(weights="DEFAULT"))
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        for step in facts.fetching.steps:
            if step.needs_all and not facts.before_launch(step.call):
                # Wrapping is a collective: under main_first() the first rank would wait for the others for ever.
                yield Note(
                    self.id,
                    facts.source.span(step.statement),
                    "all ranks download at the same time here",
                    "download before the model is wrapped, in a `with ddp.main_first():` of its own",
                )
        to_fetch = "one rank of each machine downloads, then the others read"
        reasons = dict.fromkeys(facts.fetched_to, "what is downloaded on each machine needs its folder there")
        reasons.update(dict.fromkeys((step.statement for step in facts.steps), to_fetch))
        done: set[ast.AST] = set()
        for function, steps in {**_called_alone(facts, reasons), **_of_steps(facts, reasons)}.items():
            done.update(node for step in steps for node in ast.walk(step))
            yield Decorate(self.id, facts.source.span(function), to_fetch, f"@{_IN_TURN}")
        for statement, reason in reasons.items():
            if statement not in done:
                done.update(ast.walk(statement))
                yield WrapStatement(self.id, facts.source.span(statement), reason, _HEADER)
        for func in dict.fromkeys(func for step in facts.steps for func in facts.fetching.once(step)):
            span = facts.source.span(func)
            reason = "the other ranks have nothing to fetch any more"
            yield ReplaceExpr(self.id, span, reason, "ddp.main_only(__h_f__)", {"f": span})


def _called_alone(facts: Facts, steps: Iterable[ast.stmt]) -> dict[FunctionNode, list[ast.stmt]]:
    """Functions that are one step wherever they are called, and that they are: several statements, each one call."""
    found: dict[FunctionNode, list[ast.stmt]] = {}
    for step in steps:
        if isinstance(step, ast.Expr) and isinstance(step.value, ast.Call):
            for function in facts.resolver.functions_called(step.value):
                found.setdefault(function.definition, []).append(step)
    calls = {function: [facts.source.statement(call) for call in facts.callers.of(function)] for function in found}
    return {each: one for each, one in found.items() if len(one) > 1 and set(one) == set(calls[each])}


def _of_steps(facts: Facts, steps: Iterable[ast.stmt]) -> dict[FunctionNode, list[ast.stmt]]:
    """Functions that only take steps, with something between them: else neighbours share a block."""
    found: dict[FunctionNode, list[ast.stmt]] = {}
    for step in steps:
        function = facts.source.parent(step)
        if isinstance(function, ast.FunctionDef):
            found.setdefault(function, []).append(step)
    return {
        function: own
        for function, own in found.items()
        if all(step in own or _prepares(facts, step) for step in function.body)
        and sum(step in own and above not in own for above, step in zip([None, *function.body], function.body)) > 1
    }


def _prepares(facts: Facts, statement: ast.stmt) -> bool:
    """Whether a statement only names or shows something, and needs no other rank; a generator's body runs later."""
    is_shown = isinstance(statement, ast.Expr) and (
        isinstance(statement.value, ast.Constant)
        or (isinstance(statement.value, ast.Call) and facts.names.qualified(statement.value.func) == "builtins.print")
    )
    makes = isinstance(statement, (ast.Assign, ast.Return)) and not facts.fetching.needing_all.inside(statement)
    runs_later = any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(statement))
    return (is_shown or makes) and not runs_later
