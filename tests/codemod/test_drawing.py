"""Loaders whose batches are drawn otherwise than by a plain loop: all of them are shared out, and whole."""

from __future__ import annotations

import textwrap

import pytest

from dp2ddp.pipeline import Conversion, convert_source
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


# Each with the number of loaders that it draws from, and what the plan says.
_OTHERWISE = "batches are drawn in another way than by a plain loop over the loader"
DRAWING = {
    "zip": ("for (x, y), (u, v) in zip(a, b):\n    step(x, y)\n", 2, f"{_OTHERWISE} (`zip(a, b)`, line 9)"),
    "cycle": (
        "for i, ((x, y), u) in enumerate(zip(a, itertools.cycle(b))):\n    step(x, y)\n",
        2,
        f"{_OTHERWISE} (`enumerate(zip(a, itertools.cycle(b)))`, line 9)",
    ),
    "islice": (
        "for x, y in itertools.islice(a, 10):\n    step(x, y)\n",
        1,
        f"{_OTHERWISE} (`itertools.islice(a, 10)`, line 9)",
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
        f"{_OTHERWISE} (`next(batches)`, line 12)",
    ),
    "the old next method": ("batches = iter(a)\nwhile True:\n    x, y = batches.next()\n    step(x, y)\n", 1, None),
    "the first batch": ("x, y = next(iter(a))\nstep(x, y)\n", 1, f"{_OTHERWISE} (`next(iter(a))`, line 9)"),
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
        f"{_OTHERWISE} (`loader`, line 11)",
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
        None,
    ),
    "a generator expression": (
        "for x, y in ((x.cuda(), y.cuda()) for x, y in a):\n    step(x, y)\n",
        1,
        f"{_OTHERWISE} (`((x.cuda(), y.cuda()) for x, y in a)`, line 9)",
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
        f"{_OTHERWISE} (`self.loader`, line 13)",
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
        f"{_OTHERWISE} (`next(self.batches)`, line 14)",
    ),
    "a list": ("for x, y in list(a):\n    step(x, y)\n", 1, None),
    "a dictionary of iterators": (
        """
        loaders = {"a": a, "b": b}
        batches = {name: iter(loader) for name, loader in loaders.items()}
        for name in batches:
            step(*next(batches[name]))
        """,
        2,
        f"{_OTHERWISE} (`next(batches[name])`, line 12)",
    ),
    "a library's prefetcher": (
        "from zoo import Prefetcher\nfeeder = Prefetcher(a)\nstep(*feeder.next())\n",
        1,
        "a loader is given to `Prefetcher`, which isn't known and may draw from it (`Prefetcher(a)`, line 10)",
    ),
    "a library's training": (
        "from zoo import fit\nfit(net, nn.CrossEntropyLoss(), loaders=[a, b])\n",
        2,
        "a loader is given to `fit`, which isn't known and may draw from it "
        "(`fit(net, nn.CrossEntropyLoss(), loade...`, line 10)",
    ),
    "a library's evaluation of a loader that trains": (
        "from zoo import evaluate\nfor x, y in a:\n    step(x, y)\nprint(evaluate(net, a))\n",
        1,
        "a loader is given to `evaluate`, which isn't known and may draw from it (`evaluate(net, a)`, line 12)",
    ),
}


@pytest.mark.parametrize("way", DRAWING)
def test_every_loader_that_is_drawn_from_is_shared_out_whole(way: str) -> None:
    body, count, reason = DRAWING[way]
    conversion = converted(body)
    assert conversion.new_text.count("ddp.shard_loader(DataLoader(") == count
    assert conversion.new_text.count("gather=True)") == count + 1
    assert [each.strategy for each in conversion.strategies] == ["gathered"]
    assert reason is None or conversion.strategies[0].reason == reason


def test_only_loaders_are_shared_out() -> None:
    text = converted("from zoo import fit\nfit(net, nn.CrossEntropyLoss(), a)\n").new_text
    assert "fit(net, nn.CrossEntropyLoss(), a)" in text


PLAIN = {
    "iterations counted over epochs": """
        done = 0
        while done < 100:
            for x, y in a:
                step(x, y)
                done += 1
                if done % 10 == 0:
                    validate()
                if done >= 100:
                    break
        """,
    "its length is asked for": """
        from zoo import Bar
        bar = Bar(len(a))
        for x, y in a:
            step(x, y)
        """,
}

_VALIDATE = """
def validate():
    right = 0
    for x, y in b:
        right += (net(x).argmax(1) == y).sum().item()
    print(right)
"""


@pytest.mark.parametrize("way", PLAIN)
def test_plain_loops_without_epochs_are_proved(way: str) -> None:
    conversion = converted(_VALIDATE + textwrap.dedent(PLAIN[way]))
    assert [each.strategy for each in conversion.strategies] == ["sharded"]
    assert "gather=True" not in conversion.new_text
