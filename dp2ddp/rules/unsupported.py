"""DDP016: what isn't converted."""

from __future__ import annotations

from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.wraps.replicas import Copy
from dp2ddp.project import wrapcalls
from dp2ddp.rewrite.edits import Finding, InsertBefore, Note
from dp2ddp.rules.base import Decisions, Example, Rule

#: Ends what is said of each reason.
NOTHING = "; nothing was converted"


class UnsupportedRule(Rule):
    """A use of DataParallel that can't be converted is named, and the script is left as it is."""

    id = "DDP016"
    title = "Leave what can't be converted, and say so"
    effect = "leaves what can't be converted"
    explains = True
    why = (
        "Half a conversion trains something else. Where one use of DataParallel has no safe counterpart, nothing in "
        "the script is changed, and a note says what to do."
    )
    essential = True
    examples = (
        Example(
            before="""\
import torch.nn as nn

class Own(nn.DataParallel):
    def scatter(self, inputs, kwargs, device_ids):
        return super().scatter(inputs, kwargs, device_ids[1:])

net = Own(nn.Linear(4, 2))
""",
        ),
        Example(
            also=("DDP002",),
            before="""\
import torch.nn as nn

class Uneven(nn.Module):
    def __init__(self, module, sizes):
        super().__init__()
        self.module, self.sizes = module, sizes

    def forward(self, x):
        replicas = nn.parallel.replicate(self.module, range(len(self.sizes)))
        return nn.parallel.gather(nn.parallel.parallel_apply(replicas, x.split(self.sizes)), 0)

def wrap(net, sizes):
    if len(set(sizes)) == 1:
        return nn.DataParallel(net)
    return Uneven(net, sizes)

net = wrap(nn.Linear(4, 2), [4, 4])
""",
            after="""\
import torch.nn as nn
import dp2ddp_runtime as ddp

class Uneven(nn.Module):
    def __init__(self, module, sizes):
        super().__init__()
        self.module, self.sizes = module, sizes

    def forward(self, x):
        replicas = nn.parallel.replicate(self.module, range(len(self.sizes)))
        return nn.parallel.gather(nn.parallel.parallel_apply(replicas, x.split(self.sizes)), 0)

def wrap(net, sizes):
    if len(set(sizes)) == 1:
        return ddp.wrap_model(net)
    if ddp.world_size() > 1:
        raise NotImplementedError("Uneven copies the model in every process: use nn.DataParallel")
    return Uneven(net, sizes)

net = wrap(nn.Linear(4, 2), [4, 4])
""",
        ),
    )
    valid = (
        Example("""\
import torch
import torch.nn as nn

class Own(nn.DataParallel):  # used by nobody here
    def scatter(self, inputs, kwargs, device_ids):
        return super().scatter(inputs, kwargs, device_ids[1:])

net = nn.DataParallel(nn.Linear(4, 2))
picked = net(torch.ones(8, 4)).gather(1, torch.zeros(8, 1).long())  # a tensor's `gather`
"""),
    )

    def edits(self, facts: Facts, decisions: Decisions) -> Iterator[Finding]:
        for blocker in facts.blockers:
            what = blocker.why + NOTHING
            yield Note(self.id, facts.source.span(blocker.node), what, blocker.todo)
        if facts.blockers:
            return
        for copy in facts.replicas.copies:
            yield from self._stopped(facts, copy)
        for node in facts.replicas.asked_for:
            yield Note(
                self.id,
                facts.source.span(node),
                f"`{facts.source.brief(node)}` is a step of DataParallel's forward, and the wrapped model has none",
                "leave it out, or find another way for what it does",
            )
        for file in facts.source.files:
            for mention in wrapcalls.unfollowed(file.tree) if wrapcalls.CLASS in file.text else ():
                yield Note(
                    self.id,
                    facts.source.span(mention),
                    f"`{facts.source.brief(mention)}` may mean DataParallel, which can't be told without running it",
                    "name the class plainly (`nn.DataParallel`), or check what becomes of this line",
                )

    def _stopped(self, facts: Facts, copy: Copy) -> Iterator[Finding]:
        """A run that comes to the script's own copy of DataParallel ends there; those that don't are converted."""
        assert copy.instead is not None
        name, plain = copy.unit.name, facts.source.where(copy.instead)
        yield InsertBefore(
            self.id,
            facts.source.span(facts.source.statement(copy.use)),
            f"`{name}` would copy the model onto all GPUs in every process",
            [
                "if ddp.world_size() > 1:",
                f'    raise NotImplementedError("{name} copies the model in every process: use nn.DataParallel")',
            ],
        )
        yield Note(
            self.id,
            facts.source.span(copy.use),
            f"{copy.why}: in several processes, a run that comes here ends with an error",
            f"choose the way that leads to `nn.DataParallel` ({plain}), or take it in the place of `{name}`",
        )
