"""Loaders whose batches are drawn otherwise than by a plain loop: all of them are shared out."""

from __future__ import annotations

import textwrap

import pytest

from dp2ddp.convert.pipeline import Conversion, convert_source
from dp2ddp.rules import Options

_HEAD = """\
import itertools
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
net = nn.DataParallel(nn.Linear(4, 2))
a, b = DataLoader(data, 4, shuffle=True), DataLoader(more, 4)
def step(x, y):
    nn.functional.cross_entropy(net(x), y).backward()
"""


def converted(body: str) -> Conversion:
    return convert_source(_HEAD + textwrap.dedent(body).lstrip("\n"), "train.py", Options())


# Each with the number of loaders that it draws from.
DRAWING = {
    "zip": ("for (x, y), (u, v) in zip(a, b):\n    step(x, y)\n", 2),
    "next with a restart": (
        "batches = iter(a)\nfor i in range(args.start_iter, 100):\n    try:\n        x, y = next(batches)\n"
        "    except StopIteration:\n        batches = iter(a)\n        x, y = next(batches)\n    step(x, y)\n",
        1,
    ),
    "a generator method": (
        "class Trainer:\n    def __init__(self, loader):\n        self.loader = loader\n    def batches(self):\n"
        "        for x, y in self.loader:\n            yield x.cuda(), y.cuda()\n    def train(self):\n"
        "        for x, y in self.batches():\n            step(x, y)\nTrainer(a).train()\n",
        1,
    ),
    "an iterator class": (
        "class Feeder:\n    def __init__(self, loader):\n"
        "        self.loader, self.batches = loader, iter(loader)\n    def get(self):\n        try:\n"
        "            return next(self.batches)\n        except StopIteration:\n"
        "            self.batches = iter(self.loader)\n            return next(self.batches)\n"
        "feeder = Feeder(a)\nstep(*feeder.get())\n",
        1,
    ),
    "a dictionary of iterators": (
        'loaders = {"a": a, "b": b}\nbatches = {name: iter(loader) for name, loader in loaders.items()}\n'
        "for name in batches:\n    step(*next(batches[name]))\n",
        2,
    ),
    "a library's training": ("from zoo import fit\nfit(net, nn.CrossEntropyLoss(), loaders=[a, b])\n", 2),
    "a library's loss, which calls the model": (
        "from trades import trades_loss\nfor x, y in a:\n    trades_loss(model=net, x_natural=x, y=y).backward()\n",
        1,
    ),
    "a loss of a table's that isn't known": (
        "from zoo import *\nloss = {'mart': mart_loss, 'trades': trades_loss}[args.loss]\nfor batch in a:\n"
        "    x = batch['x'].cuda()\n    loss(net, x).backward()\n",
        1,
    ),
    "nothing that calls the model": (
        "import logging, zoo\nfor i, (x, y) in enumerate(a):\n    print(isinstance(net, nn.DataParallel), x)\n"
        "    logging.info('%s of %s', x, net)\n    zoo.update_average(net, i)\n",
        0,
    ),
    "a library's evaluation of a loader that trains": (
        "from zoo import evaluate\nfor x, y in a:\n    step(x, y)\nprint(evaluate(net, a))\n",
        1,
    ),
}


@pytest.mark.parametrize("way", DRAWING)
def test_every_loader_that_is_drawn_from_is_shared_out(way: str) -> None:
    body, count = DRAWING[way]
    conversion = converted(body)
    assert conversion.new_text.count("ddp.shard_loader(DataLoader(") == count


def test_only_loaders_are_shared_out() -> None:
    text = converted("from zoo import fit\nfit(net, nn.CrossEntropyLoss(), a)\n").new_text
    assert "fit(net, nn.CrossEntropyLoss(), a)" in text


_LOOPS = """\
import torch.nn as nn
from torch.utils.data import DataLoader
from tqdm import tqdm, trange

class Batches(DataLoader):
    def __init__(self, data):
        super().__init__(data, batch_size=4)

net = nn.DataParallel(nn.Linear(4, 2))
loader = Batches(data)
"""


def test_a_loader_class_of_the_script_is_a_loader() -> None:
    loop = "bar = tqdm(iter(loader), total=len(loader))\nfor i, x in enumerate(bar):\n    net(x).sum().backward()\n"
    conversion = convert_source(_LOOPS + loop, "train.py", Options())
    assert "loader = ddp.shard_loader(Batches(data))" in conversion.new_text
    assert conversion.new_text.count("shard_loader") == 1


@pytest.mark.parametrize("count", ["trange(0, 10)", "range(10)", "tqdm(range(10))"])
def test_a_count_is_no_loader(count: str) -> None:
    loop = f"batches = iter(loader)\nsteps = {count}\nfor i in steps:\n    net(next(batches)).sum().backward() * i\n"
    new = convert_source(_LOOPS + loop, "train.py", Options()).new_text
    assert "for i in steps:" in new
    assert new.count("shard_loader") == 1
