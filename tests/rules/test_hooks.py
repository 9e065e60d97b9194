"""Hooks that keep what they see are noted where they are a wrapped model's."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = """\
import functools
import torch
import torch.nn as nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        INSIDE
    def keep(self, module, inputs, output):
        self.seen = output
    def show(self, module, inputs, output):
        print(output.shape)
    def forward(self, x):
        return self.layer(x)
total = 0
def add(module, inputs, output):
    global total
    total += 1
def mark(module, inputs, output):
    module.seen = output
def put(name, module, inputs, output):
    model.seen[name] = output
def measure(model):
    counts = []
    def count(module, inputs, output):
        counts.append(output.numel())
    model.layer.register_forward_hook(count)
    model(torch.ones(1, 4))
    return sum(counts)
model = Net()
print(measure(model))
net = nn.DataParallel(model)
"""


@pytest.mark.parametrize(
    ("inside", "line", "noted"),
    [
        ("pass", "net.module.layer.register_forward_hook(add)", True),
        ("pass", "model.layer.register_forward_hook(add)", True),
        ("pass", "for each in model.modules():\n    each.register_full_backward_hook(add)", True),
        ("pass", "model.layer.register_backward_hook(lambda m, i, o: print.append(o))", True),
        ("pass", "model.layer.register_forward_hook(lambda m, i, o: m.add(o) or [].append(o))", False),
        ("pass", "model.layer.register_forward_hook(functools.partial(put, 'fc'))", True),
        (
            "pass",
            "def main():\n    kept = []\n    model.layer.register_forward_hook(lambda m, i, o: kept.append(o))\n"
            "    net(torch.ones(8, 4))\nmain()",
            True,
        ),
        (
            "pass",
            "class Held:\n    def __init__(self, at): at.register_forward_hook(self.put)\n"
            "    def put(self, *seen):\n        self.seen = seen\nHeld(net.module.layer)",
            True,
        ),
        (
            "pass",
            "class Held:\n    def __call__(self, *seen):\n        self.seen = seen\n"
            "net.module.layer.register_forward_hook(Held())",
            True,
        ),
        ("pass", "net.register_forward_hook(add)", False),  # on whole batches
        ("pass", "layer = model\nfor layer in layer.children():\n    layer.register_forward_hook(mark)", False),
        ("self.layer.register_forward_hook(self.keep)", "", True),
        ("self.layer.register_forward_hook(self.show)", "", False),
        ("pass", "nn.Linear(3, 3).register_forward_hook(add)", False),
        ("pass", "model.layer.register_forward_hook(mark)", False),  # on the replica's layer, which goes
        ("pass", "", False),
    ],
)
def test_a_hook_that_keeps_is_noted(inside: str, line: str, noted: bool) -> None:
    script = f"{_HEAD.replace('INSIDE', inside)}{line}\nnet(torch.ones(8, 4)).sum().backward()\n"
    notes = convert_source(script, "train.py", Options()).notes
    assert [note.rule for note in notes] == ["DDP025"] * noted
