"""DDP016: what isn't converted."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.roles import Wrapped
from dp2ddp.edits import Finding, Note
from dp2ddp.rules.base import Example, Options, Rule

# The steps of `nn.DataParallel.forward`, which some scripts call or exchange.
_STEPS = frozenset({"replicate", "scatter", "parallel_apply", "gather"})


class UnsupportedRule(Rule):
    """A use of DataParallel that can't be converted is named, and the script is left as it is."""

    id = "DDP016"
    title = "Leave what can't be converted, and say so"
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
            after="""\
import torch.nn as nn

class Own(nn.DataParallel):
    def scatter(self, inputs, kwargs, device_ids):
        return super().scatter(inputs, kwargs, device_ids[1:])

net = Own(nn.Linear(4, 2))
""",
        ),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        for node, why in facts.blockers:
            yield Note(
                self.id,
                facts.source.span(node),
                f"{why}; nothing was converted",
                "wrap the model in plain `nn.DataParallel`, then convert again",
            )
        for node in facts.source.nodes:
            if isinstance(node, ast.Attribute) and node.attr in _STEPS and facts.resolver.holds(node.value, Wrapped):
                yield Note(
                    self.id,
                    facts.source.span(node),
                    f"`{facts.source.brief(node)}` is a step of DataParallel's forward, and the wrapped model has none",
                    "leave it out, or find another way for what it does",
                )
