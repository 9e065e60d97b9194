"""Loaders that nobody has sharded, and whose batches a wrapped model gets."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from dp2ddp_runtime.batches import unsharded
from dp2ddp_runtime.batches.loader import shard_loader
from dp2ddp_runtime.model.wrapped import wrap_model
from rank_pool import RankPool
from torch import nn
from torch.utils.data import DataLoader

_DATA = torch.arange(96.0).view(24, 4)


def _trains(net: Any, **options: Any) -> None:
    for batch in DataLoader(_DATA, 4, **options):
        net(batch.mul(2)[:, 1:3].reshape(-1, 4))


def _trains_with_workers(net: Any) -> None:
    _trains(net, num_workers=1)


def _draws_by_hand(net: Any) -> None:
    loader: Iterator[Any] = iter(DataLoader(_DATA, 4))
    for _ in range(4):
        net(next(loader))


def _is_sharded(net: Any) -> None:
    for batch in shard_loader(DataLoader(_DATA, 4)):
        net(batch)
    for batch in shard_loader(DataLoader(_DATA, 4, collate_fn=torch.stack)):  # whole on each rank, as is known
        net(batch)


def _draws_noise(net: Any) -> None:
    check = iter(DataLoader(_DATA, 4))
    for batch in shard_loader(DataLoader(_DATA, 4)):
        net(torch.ones(4, 4))
        net(batch)
        net.module(next(check))


def _evaluates_bare(net: Any) -> None:
    check = DataLoader(_DATA, 4)
    first = iter(check)
    net.module(next(first))
    for _ in range(4):
        for batch in check:
            net.module(batch)
        for _ in range(4):
            net(torch.ones(4, 4))


def told(way: Any) -> list[str]:
    begin, net = DataLoader.__iter__, wrap_model(nn.Linear(4, 4))
    unsharded.watch()
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            way(net)
    finally:
        DataLoader.__iter__, unsharded._has_told = begin, False  # type: ignore[method-assign]
        unsharded._passes.clear()
    return [str(each.message) for each in found]


@pytest.mark.parametrize("way", [_trains, _trains_with_workers, _draws_by_hand])
def test_a_loader_that_is_not_sharded_and_feeds_the_model_is_told_once(ranks: RankPool, way: Any) -> None:
    for (one,) in ranks(2, told, way):
        assert re.match(r"the batches of test_unsharded.py:\d+ come from a DataLoader that isn't sharded: ", one)


@pytest.mark.parametrize("way", [_is_sharded, _draws_noise, _evaluates_bare])
def test_other_loaders_are_not_told(ranks: RankPool, way: Any) -> None:
    assert ranks(2, told, way) == [[], []]
