"""DDP012: download once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.source import keyword
from dp2ddp.edits import Finding, Note, WrapStatement
from dp2ddp.rules.base import Example, Options, Rule

_DOWNLOADS = frozenset(
    {
        "torch.hub.download_url_to_file",
        "torchvision.datasets.utils.download_url",
        "torchvision.datasets.utils.download_and_extract_archive",
        "urllib.request.urlretrieve",
    }
)


class DownloadsRule(Rule):
    """Datasets with `download=True` are built by one rank of each machine first; the others then find the files."""

    id = "DDP012"
    title = "Download on one rank of each machine"
    why = (
        "All ranks would download the same archive at once and unpack it over one another. Under `ddp.main_first()` "
        "the first rank of each machine runs the block alone, then the others."
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
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        if not facts.parallel:
            return
        done: set[ast.stmt] = set()
        wraps = {w.call for w in facts.wraps.models}
        for call in facts.source.calls:
            statement = facts.source.statement(call)
            if not self._downloads(facts, call) or statement in done or not isinstance(statement, _SIMPLE):
                continue
            done.add(statement)
            if any(n in wraps for n in ast.walk(statement)):
                # Wrapping is a collective: under main_first() the first rank would wait for the others for ever.
                yield Note(
                    self.id,
                    facts.source.span(statement),
                    "all ranks download at the same time here",
                    "download before the model is wrapped, in a `with ddp.main_first():` of its own",
                )
            else:
                yield WrapStatement(
                    self.id,
                    facts.source.span(statement),
                    "one rank of each machine downloads, then the others read",
                    "with ddp.main_first():",
                )

    def _downloads(self, facts: Facts, call: ast.Call) -> bool:
        if facts.names.qualified(call.func) in _DOWNLOADS:
            return True
        if facts.resolver.functions_called(call):
            return False  # the script's own function hands it on, and may do more than download
        given = keyword(call, "download")
        return given is not None and not (isinstance(given, ast.Constant) and not given.value)


_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)
