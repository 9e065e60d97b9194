"""DDP026: what a forward keeps."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp.analysis.facts import Facts
from dp2ddp.rewrite.edits import Finding, Note
from dp2ddp.rules.base import Example, Options, Rule


class KeptRule(Rule):
    """What a forward counts, or assigns to a `.data`, is named: replicas lose it, a converted script keeps it."""

    id = "DDP026"
    title = "Point out what replicas lose"
    why = (
        "Replicas are made anew for each batch: what a forward counts (`self.steps += 1`) or assigns to the `.data` of "
        "a parameter is gone with them. A converted script keeps it, as one GPU does: what the author meant, but not "
        "what DataParallel trained."
    )
    examples = (
        Example("""\
import torch
import torch.nn as nn

class Warm(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return self.layer(x) * min(1.0, self.steps / 100)

net = nn.DataParallel(Warm())
"""),
    )
    valid = (
        Example("""\
import torch
import torch.nn as nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.weight.data = torch.rand(4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1  # in its memory, which the first replica shares
        return x * self.weight

net = nn.DataParallel(Net())
"""),
    )

    def edits(self, facts: Facts, options: Options) -> Iterator[Finding]:
        kinds = (node for node in facts.source.nodes if isinstance(node, ast.ClassDef))
        for kind in (each for each in kinds if {*map(ast.unparse, each.bases)} - {"object"}):  # else it is no module
            kept = list(_kept(facts, kind))
            if kept:
                names = ", ".join(dict.fromkeys(f"`{ast.unparse(target)}`" for _, target in kept))
                what = f"replicas lose what a forward changes in {names}; a converted script keeps it, as one GPU does"
                todo = "expect one GPU's numbers, by which `dp2ddp verify` goes as well"
                yield Note(self.id, facts.span(kept[0][0]), what, todo)


def _kept(facts: Facts, kind: ast.ClassDef) -> Iterator[tuple[ast.stmt, ast.expr]]:
    """What a class's forward, or a method that it calls, changes and replicas lose."""
    numbers = set(map(ast.unparse, _given_numbers(kind)))
    for node in (node for method in facts.classes.with_own(kind, "forward") for node in ast.walk(method)):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
            if ast.unparse(node.target) in numbers:
                yield node, node.target
        elif isinstance(node, ast.Assign):
            targets = (each for each in node.targets if isinstance(each, ast.Attribute))
            yield from ((node, each) for each in targets if each.attr == "data")


def _given_numbers(kind: ast.ClassDef) -> Iterator[ast.expr]:
    for node in (node for node in ast.walk(kind) if isinstance(node, ast.Assign)):
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, (int, float)):
            yield from node.targets
