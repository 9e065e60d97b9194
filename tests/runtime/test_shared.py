"""What `nn.DataParallel`'s replicas share: where a forward changes it, each rank has its own, and that is told."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict, deque
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dp2ddp_runtime.model.wrapped import wrap_model
from rank_pool import RankPool
from torch import nn


class Meter:
    def __init__(self) -> None:
        self.seen = 0


class Counter:
    """A metric without a `__dict__`, whose `total` is the same on ranks that have as many rows."""

    __slots__ = ("correct", "highest", "parts", "total")

    def __init__(self) -> None:
        self.total, self.correct, self.highest = 0, torch.zeros(()), 0
        self.parts: list[int] = []


class Layer(nn.Module):
    """A module that holds something; `how` its forward changes it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.count = how, 0
        self.seen: list[Any] = [0]
        self.last: deque[Any] = deque([0, 0], maxlen=2)
        self.by_name: dict[str, Any] = defaultdict(list)
        self.names: set[Any] = set()
        self.held, self.slotted, self.meters = Meter(), Counter(), {"size": Meter()}
        self.config = SimpleNamespace(width=0, longest=0)

    def forward(self, x: torch.Tensor, meter: Meter) -> torch.Tensor:
        if self.how == "meter":
            meter.seen += len(x)
        elif self.how == "seen":
            self.seen.append(x)
        elif self.how == "last":
            self.last.append(x)
        elif self.how == "by_name":
            self.by_name["x"].append(x)
        elif self.how == "names":
            self.names.update(x.tolist())
        elif self.how == "cache":
            self.by_name[f"{len(x)} rows"] = torch.arange(len(x))
            self.names.add(len(x))
        elif self.how == "own":  # each replica's own, and lost, there as here
            self.count += len(x)
            self.held = Meter()
            self.held.seen += len(x)
            self.seen = []
            self.seen.append(x)
            self.register_forward_hook(lambda *_: None)
        self.change_objects(x)
        return x

    def change_objects(self, x: torch.Tensor) -> None:
        if self.how == "held":
            self.held.seen += int(x.sum())
        elif self.how == "correct":
            self.slotted.correct += x.sum()
        elif self.how == "parts":
            self.slotted.parts.append(0)
        elif self.how == "meters":
            self.meters["size"].seen += int(x.sum())
        elif self.how == "total":
            self.slotted.total += len(x)
        elif self.how == "counts":
            self.by_name["rows"] = self.by_name.get("rows", 0) + len(x)
        elif self.how == "sizes":
            self.config.width, self.config.longest = len(x), max(self.config.longest, len(x))
            self.config.cached = torch.arange(len(x))


def changed_by(how: str, rows: int, calls: int) -> list[str]:
    net, meter = wrap_model(nn.Sequential(Layer("nothing"), Layer(how)) if how == "inner" else Layer(how)), Meter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(calls):
            net(torch.arange(float(rows)), meter)
    return [str(each.message) for each in told]


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("meter", "Meter that is argument 2"),
        ("seen", "list Layer.seen"),
        ("last", "deque Layer.last"),
        ("by_name", "defaultdict Layer.by_name"),
        ("names", "set Layer.names"),
        ("held", "Meter Layer.held"),
        ("correct", "Counter Layer.slotted"),
        ("parts", "list Layer.slotted.parts"),
        ("meters", "Meter Layer.meters.size"),
    ],
)
def test_what_each_replica_adds_to_is_told(ranks: RankPool, how: str, what: str) -> None:
    for (told,) in ranks(2, changed_by, how, 6, 1):
        assert re.search(rf"the model at test_shared.py:\d+ changes the {what}: ", told)


@pytest.mark.parametrize("how", ["total", "counts"])
def test_what_counts_the_same_on_all_ranks_is_told_in_the_second_call(ranks: RankPool, how: str) -> None:
    """It may be a size that is kept, until it has grown by as much again."""
    assert [[len(told) for told in ranks(2, changed_by, how, 6, calls)] for calls in (1, 2)] == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("how", "rows"), [("nothing", 6), ("own", 6), ("cache", 6), ("sizes", 6), ("seen", 1), ("held", 1)]
)
def test_what_is_as_in_one_process_is_not_told(ranks: RankPool, how: str, rows: int) -> None:
    """A cache that all ranks fill alike, say; or the only replica that has rows."""
    assert ranks(2, changed_by, how, rows, 3) == [[], []]


def test_modules_are_looked_at_in_the_first_calls_alone(ranks: RankPool) -> None:
    assert [len(each) for each in ranks(2, changed_by, "seen", 6, 5)] == [2, 2]
