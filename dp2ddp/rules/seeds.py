"""DDP010: seed the ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, ReplaceExpr
from dp2ddp.rules.base import Decisions, Example, Rule
from dp2ddp.source.nodes import same

_OTHERS = frozenset({"random.seed", "numpy.random.seed"})
# What makes generators of the script's own.
_GENERATORS = frozenset(
    "random.Random random.SystemRandom numpy.random.Generator numpy.random.RandomState numpy.random.SeedSequence "
    "numpy.random.default_rng".split()
)
_ALL = _OTHERS | {"torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all"}


class SeedsRule(Rule):
    """`torch.manual_seed(seed)` becomes `ddp.seed_everything(seed)` where that changes no other stream."""

    id = "DDP010"
    title = "Seed what must agree alike, and dropout apart"
    effect = "seeds alike what has to agree"
    why = (
        "Every rank runs the script's own seeding, so weights, `random_split` and shuffles come out alike. "
        "`ddp.seed_everything` also starts this rank's own stream for dropout and augmentation, which must differ "
        "between ranks. It seeds `random` and NumPy, too, so it is only used where the script seeds them alike, or "
        "neither seeds nor draws from them; otherwise the script's lines stay, and the ranks' own streams start from "
        "torch's seed."
    )
    examples = (
        Example(
            before="""\
import random
import torch
import torch.nn as nn

def init_seeds(seed):
    random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)

net = nn.DataParallel(nn.Linear(4, 2))
""",
            after="""\
import random
import torch
import torch.nn as nn
import dp2ddp_runtime as ddp

def init_seeds(seed):
    random.seed(seed)
    ddp.seed_everything(seed)
    torch.cuda.manual_seed_all(seed)

net = nn.DataParallel(nn.Linear(4, 2))
""",
        ),
    )
    valid = (
        Example("""\
import numpy as np
import torch
import torch.nn as nn

np.random.seed(1)
order = np.random.permutation(10)
torch.manual_seed(2)  # NumPy's stream is not to begin again here
net = nn.DataParallel(nn.Linear(4, 2))
"""),
        Example("""\
import torch
import torch.nn as nn
from torch.utils.data import random_split

net = nn.DataParallel(nn.Linear(4, 2))
generator = torch.Generator().manual_seed(0)  # a stream of its own
train, test = random_split(range(100), [80, 20], generator=generator)
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        if not facts.parallel:
            return
        seeds = [c for c in facts.source.calls if self._seeds(facts, c)]
        for call in seeds:
            if facts.names.qualified(call.func) == "torch.manual_seed" and self._may_seed_all(facts, call, seeds):
                reason = "seeds what must agree alike, and starts this rank's own stream for dropout and augmentation"
                yield ReplaceExpr(self.id, facts.source.span(call.func), reason, "ddp.seed_everything")

    def _may_seed_all(self, facts: Facts, call: ast.Call, seeds: list[ast.Call]) -> bool:
        """Whether seeding `random` and NumPy here too leaves their streams as they were."""
        statement = facts.source.statement(call)
        alone = isinstance(statement, ast.Expr) and statement.value is call and len(call.args) == 1
        if not alone or any(isinstance(n, (ast.For, ast.While)) for n in facts.source.ancestors(call)):
            return False
        block = facts.source.block(statement)
        together = {s.value for s in self._run_of_seeds(facts, block, statement)}
        others = [s for s in seeds if facts.names.qualified(s.func) in _OTHERS]
        torchs = [s for s in seeds if facts.names.qualified(s.func) == "torch.manual_seed"]
        alike = all(o in together and o.args and same(o.args[0], call.args[0]) for o in others)
        seeded = {facts.names.qualified(s.func) for s in others}
        return alike and (bool(others) or len(torchs) == 1) and not self._draws_from(facts, _OTHERS - seeded)

    def _draws_from(self, facts: Facts, unseeded: Iterable[str]) -> bool:
        """Whether the script draws from generators that it doesn't seed, so that each of its runs has other numbers."""
        modules = tuple(path.rpartition("seed")[0] for path in unseeded)
        if not modules:
            return False
        names = (n for n in facts.source.nodes if isinstance(n, (ast.Name, ast.Attribute)))
        paths = (facts.names.qualified(name) or "" for name in names)
        return any(path.startswith(modules) and path not in _GENERATORS for path in paths)

    def _run_of_seeds(self, facts: Facts, block: list[ast.stmt], statement: ast.stmt) -> list[ast.Expr]:
        """The uninterrupted run of seeding calls around `statement`."""
        run: list[ast.Expr] = []
        for other in block:
            call = other.value if isinstance(other, ast.Expr) else None
            if isinstance(other, ast.Expr) and isinstance(call, ast.Call) and self._seeds(facts, call):
                run.append(other)
            elif statement in run:
                return run
            else:
                run = []
        return run

    def _seeds(self, facts: Facts, call: ast.Call) -> bool:
        return facts.names.qualified(call.func) in _ALL
