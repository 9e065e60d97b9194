"""The one message by which ranks tell each other values: sizes, kinds of values, and ranks that have come apart."""

from __future__ import annotations

import datetime
import math
import os
import pathlib
import time
import uuid
from collections import namedtuple
from enum import Enum
from typing import Any

import dp2ddp_runtime as ddp
import numpy as np
import pytest
import torch
from dp2ddp_runtime import codec, disk
from dp2ddp_runtime.world import agree, exchange, world
from rank_pool import RankError, RankPool, on_ranks

PLAIN: list[Any] = [
    "\u2028", b"\0bytes", (1, ["a", (None,)]), {1, 2}, {"a": {1: (2,)}, (3, 4): None},
    datetime.datetime(2026, 11, 21, 3, 4, 5), datetime.timedelta(seconds=1.5), pathlib.Path("a/b"), uuid.UUID(int=7),
    time.localtime(0), np.float32(0.1), np.arange(6).reshape(2, 3), np.zeros((0, 2)), np.float64(0.1), np.bool_(True),
    np.array([1j, np.nan]), [np.str_("text"), datetime.date(1, 2, 3)], [torch.zeros(2), np.int64(3)], 2**80, math.inf,
    frozenset({1}), bytearray(b"bytes"),
]  # fmt: skip


def test_plain_values_come_back_as_they_were() -> None:
    for value in PLAIN:
        tensors: list[torch.Tensor] = []
        back = codec.loads(codec.dumps(value, tensors), tensors)
        assert (type(back), repr(back)) == (type(value), repr(value))


def test_other_values_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="object can't be sent to other ranks"):
        codec.dumps([object()], [])
    with pytest.raises(TypeError, match="array of Python objects can't be sent"):
        codec.dumps(np.array([object()]), [])
    with pytest.raises(TypeError, match="struct_time_like can't be sent"):
        codec.dumps(namedtuple("struct_time_like", "year")(2026), [])


def test_a_text_of_an_enum_is_its_text() -> None:
    assert codec.loads(codec.dumps(Enum("Mode", {"TRAIN": "train"}, type=str).TRAIN, []), []) == "train"  # type: ignore[attr-defined]


def diverged(action: str) -> None:
    def train() -> None:
        exchange("a test")

    if action == "kind":
        exchange("one" if world.rank == 0 else "other", None, [torch.ones(1000 * (world.rank + 1))])
    elif action == "line" and world.rank == 0:
        exchange("a test")
    elif action == "twice" and world.rank == 0:
        for _ in range(2):
            train()
    else:
        train()
        if action == "twice":
            exchange("another")


@pytest.mark.parametrize("action", ["kind", "line", "twice"])
def test_ranks_in_different_messages_are_told_both_lines(ranks: RankPool, action: str) -> None:
    with pytest.raises(RankError) as raised:
        ranks(2, diverged, action)
    for failure in raised.value.failures.values():
        assert "Divergence: the ranks have come apart: rank 0 at test_exchange.py:" in failure
        assert "; rank 1 at test_exchange.py:" in failure


def disagrees(kind: str) -> None:
    agree("what is the same", 1)
    if kind != "missing" or world.rank:
        agree("a number of steps", world.rank + 3)
    exchange(f"a test that follows from it, of rank {world.rank}" if kind == "ahead" else "a test")


@pytest.mark.parametrize(("kind", "first"), [("value", "3"), ("missing", "nothing"), ("ahead", "3")])
def test_other_values_are_told_with_the_next_message(ranks: RankPool, kind: str, first: str) -> None:
    with pytest.raises(RankError) as raised:
        ranks(2, disagrees, kind)
    for failure in raised.value.failures.values():
        assert "Divergence: a number of steps at test_exchange.py:" in failure
        assert f"differs between the ranks: rank 0: {first}; rank 1: 4" in failure


def ends() -> None:
    if world.rank:
        os._exit(3)
    exchange("a test")


def test_a_rank_that_has_ended_is_named(ranks: RankPool) -> None:
    with pytest.raises(RankError) as raised:
        ranks(2, ends)
    assert "PeerError: rank 1 has ended, and this one (test_exchange.py:" in raised.value.failures[0]


@on_ranks(3, each=True)
def test_gather_gives_each_rank_s() -> bool:
    rank = world.rank
    with pytest.raises(TypeError, match="object can't be sent"):
        ddp.gather(object())
    rows = torch.full((rank + 1, 2), float(rank), requires_grad=True)
    found = ddp.gather({"rows": rows, "number": 2**80 + rank, "kinds": (rank, {np.float32(rank)})})
    joined = torch.cat([each["rows"] for each in found])
    assert joined[:, 0].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]
    assert not joined.requires_grad
    assert sum(each["number"] for each in found) == 3 * 2**80 + 3
    assert [each["kinds"] for each in found] == [(other, {np.float32(other)}) for other in range(3)]
    return type(found[1]["kinds"][1].pop()) is np.float32


class Host(dict[str, bytes]):
    """Of a store: what is set is on its way, and comes ahead of what is asked by the same rank."""

    def set(self, *sent: Any) -> None:
        self.sent = sent

    def check(self, keys: list[str]) -> bool:
        self.update([self.sent])
        return keys[0] in self


def test_what_is_told_is_there_for_a_rank_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ahead of what follows on the disk, and also where the one that tells has begun the next message."""
    log, late = disk.Log("files"), disk.Log("files")
    monkeypatch.setattr(world, "store", host := Host())
    for count in (7, 8):
        monkeypatch.setattr(world, "count", count)
        log.write([count])
        assert len(host) == count - 6
    monkeypatch.setattr(world, "count", 7)
    assert list(late.read()) == [[7]]


def test_a_name_of_a_newer_version_says_what_to_do() -> None:
    with pytest.raises(AttributeError, match=rf"{ddp.__version__} has no 'later': .* install the dp2ddp"):
        ddp.later()
    with pytest.raises(ImportError):
        from dp2ddp_runtime import later  # noqa: F401
