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
    "cycle": (
        "for i, ((x, y), u) in enumerate(zip(a, itertools.cycle(b))):\n    step(x, y)\n",
        2,
    ),
    "islice": (
        "for x, y in itertools.islice(a, 10):\n    step(x, y)\n",
        1,
    ),
    "next with a restart": (
        """
        batches = iter(a)
        for i in range(args.start_iter, 100):
            try:
                x, y = next(batches)
            except StopIteration:
                batches = iter(a)
                x, y = next(batches)
            step(x, y)
        """,
        1,
    ),
    "the old next method": ("batches = iter(a)\nwhile True:\n    x, y = batches.next()\n    step(x, y)\n", 1),
    "the first batch": ("x, y = next(iter(a))\nstep(x, y)\n", 1),
    "a generator": (
        """
        def forever(loader):
            while True:
                for batch in loader:
                    yield batch
        batches = forever(a)
        for i in range(9):
            x, y = next(batches)
            step(x, y)
        """,
        1,
    ),
    "a generator that hands on": (
        """
        def forever(loader):
            while True:
                yield from loader
        for i, (x, y) in zip(range(9), forever(a)):
            step(x, y)
        """,
        1,
    ),
    "a generator expression": (
        "for x, y in ((x.cuda(), y.cuda()) for x, y in a):\n    step(x, y)\n",
        1,
    ),
    "a generator method": (
        """
        class Trainer:
            def __init__(self, loader):
                self.loader = loader
            def batches(self):
                for x, y in self.loader:
                    yield x.cuda(), y.cuda()
            def train(self):
                for x, y in self.batches():
                    step(x, y)
        Trainer(a).train()
        """,
        1,
    ),
    "an iterator class": (
        """
        class Feeder:
            def __init__(self, loader):
                self.loader, self.batches = loader, iter(loader)
            def get(self):
                try:
                    return next(self.batches)
                except StopIteration:
                    self.batches = iter(self.loader)
                    return next(self.batches)
        feeder = Feeder(a)
        step(*feeder.get())
        """,
        1,
    ),
    "a list": ("for x, y in list(a):\n    step(x, y)\n", 1),
    "a dictionary of iterators": (
        """
        loaders = {"a": a, "b": b}
        batches = {name: iter(loader) for name, loader in loaders.items()}
        for name in batches:
            step(*next(batches[name]))
        """,
        2,
    ),
    "a library's prefetcher": (
        "from zoo import Prefetcher\nfeeder = Prefetcher(a)\nstep(*feeder.next())\n",
        1,
    ),
    "a library's training": (
        "from zoo import fit\nfit(net, nn.CrossEntropyLoss(), loaders=[a, b])\n",
        2,
    ),
    "a library's loss, which calls the model": (
        "from trades import trades_loss\nfor x, y in a:\n    trades_loss(model=net, x_natural=x, y=y).backward()\n",
        1,
    ),
    "a loss of a table's that isn't known": (
        "from zoo import *\nloss = {'mart': mart_loss, 'trades': trades_loss}[args.loss]\n"
        "for batch in a:\n    x = batch['x'].cuda()\n    loss(net, x).backward()\n",
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
