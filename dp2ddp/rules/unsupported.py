"""DDP016: what isn't converted."""

from __future__ import annotations

from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.project import wrapcalls
from dp2ddp.rewrite.edits import Finding, Note
from dp2ddp.rules.base import Example, Options, Rule

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
        Example("""\
import torch.nn as nn

class Own(nn.DataParallel):
    def scatter(self, inputs, kwargs, device_ids):
        return super().scatter(inputs, kwargs, device_ids[1:])

net = Own(nn.Linear(4, 2))
"""),
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

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        for blocker in facts.blockers:
            what = blocker.why + NOTHING
            yield Note(self.id, facts.source.span(blocker.node), what, blocker.todo)
        if facts.blockers:
            return
        for file in facts.source.files:
            for mention in wrapcalls.unfollowed(file.tree) if wrapcalls.CLASS in file.text else ():
                yield Note(
                    self.id,
                    facts.source.span(mention),
                    f"`{facts.source.brief(mention)}` may mean DataParallel, which can't be told without running it",
                    "name the class plainly (`nn.DataParallel`), or check what becomes of this line",
                )
