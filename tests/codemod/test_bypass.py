"""Training that goes past the wrapped model's forward is never sharded: ranks would train on their shards alone."""

from __future__ import annotations

import pytest

from dp2ddp.pipeline import Conversion, convert_source
from dp2ddp.rules import Options

_HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)
    def encode(self, x):
        return self.body(x)
    def penalty(self):
        return self.head.weight.norm()
    def forward(self, x):
        return self.head(self.encode(x))
net = nn.DataParallel(Net())
loader = DataLoader(data, 4)
for x, y in loader:
"""


def converted(*lines: str) -> Conversion:
    body = "".join(f"    {line}\n" for line in (*lines, "loss.backward()"))
    return convert_source(_HEAD + body, "train.py", Options())


PAST = {
    "a method beside forward": "loss = F.cross_entropy(net(x), y) + net.module.encode(x).square().mean()",
    "methods instead of forward": "loss = F.cross_entropy(net.module.head(net.module.encode(x)), y)",
    "the module itself": "loss = F.cross_entropy(net.module(x), y)",
    "the module's forward": "loss = F.cross_entropy(net.module.forward(x), y)",
    "the wrapper's forward": "loss = F.cross_entropy(net.forward(x), y)",
    "a layer on outputs": "loss = F.cross_entropy(net.module.head(net(x)), y)",
    "a layer on the batch": "loss = F.cross_entropy(net.module.head(x), y)",
    "by another name": "m = net.module; loss = F.cross_entropy(m.encode(x), y)",
    "a layer's weight": "loss = F.cross_entropy(net(x) + F.linear(x, net.module.head.weight), y)",
}


@pytest.mark.parametrize("way", PAST)
def test_training_past_forward_sees_whole_batches(way: str) -> None:
    conversion = converted(PAST[way])
    assert [each.strategy for each in conversion.strategies] == ["gathered"]
    assert "ddp.shard_loader(DataLoader(data, 4), gather=True)" in conversion.new_text
    assert "ddp.wrap_model(Net(), gather=True)" in conversion.new_text


BESIDE = {
    "a regulariser": ["loss = F.cross_entropy(net(x), y) + 0.1 * net.module.penalty()"],
    "a norm of a layer's weight": ["loss = F.cross_entropy(net(x), y) + net.module.head.weight.norm()"],
    "without gradients": [
        "loss = F.cross_entropy(net(x), y)",
        "with torch.no_grad(): print(net.module.encode(x).mean())",
    ],
}


@pytest.mark.parametrize("way", BESIDE)
def test_what_takes_nothing_of_the_shard_into_the_gradients_may_stay(way: str) -> None:
    conversion = converted(*BESIDE[way])
    assert [each.strategy for each in conversion.strategies] == ["sharded"]
