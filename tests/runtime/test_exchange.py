"""The channel by which ranks tell each other values: sizes, kinds of values, and ranks that have diverged."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import pathlib
import signal
import time
import uuid
from collections.abc import Iterator
from typing import Any
from unittest import mock

import dp2ddp_runtime as ddp
import numpy as np
import pytest
import torch
from dp2ddp_runtime import operations
from dp2ddp_runtime.base import codec, world
from dp2ddp_runtime.ranks import collectives, direct, exchange, group, rng
from dp2ddp_runtime.ranks.exchange import Piggybacked
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_pool import RankError, RankPool, on_ranks


@contextlib.contextmanager
def gatherings() -> Iterator[list[int]]:
    """How many bytes each gathering in it sends."""
    sent: list[int] = []

    def noted(real: Any) -> Any:
        def collective(row: torch.Tensor, *source: int) -> torch.Tensor:
            if len(row):
                sent.append(len(row))
            return real(row, *source)

        return collective

    exchange._needed.clear()
    exchange._needed.extend([4096] * 2)
    both = {"all_gather": noted(exchange.all_gather), "broadcast": noted(exchange.broadcast)}
    with mock.patch.multiple(exchange, **both):
        yield sent


def exchanged() -> list[int]:
    """Parts that shrink and grow, so that the foreseen size fits and doesn't; how many gatherings each took."""
    taken = []
    with gatherings() as sent:
        for size in (3, 3, 20000, 20000, 20000, 5, 100000, *[5] * 8, 5):
            rows = size * (world.rank() + 1)
            tensors = [torch.arange(rows), torch.rand(0, 4), torch.tensor(True), torch.full((2, 1), 1j).mT]
            for rank, (note, *came) in enumerate(exchange.exchange("a test", ["a note", *tensors])):
                assert note == "a note"
                assert torch.equal(came[0], torch.arange(size * (rank + 1)))
                assert came[1].shape == (0, 4)
                assert torch.equal(came[2], torch.tensor(True))
                assert torch.equal(came[3], torch.full((1, 2), 1j))
            taken.append(len(sent))
            last, sent[:] = sent[0], []
    return [*taken, last]


@pytest.mark.parametrize("n", [2, 3])
def test_one_collective_where_the_size_can_be_foreseen(ranks: RankPool, n: int) -> None:
    for *taken, last in ranks(n, exchanged):
        assert taken == [1, 1, 2, 2, 1, 1, 2, *[1] * 9]
        assert last < 4096, "large messages are forgotten after a while"


def after_large_ones() -> list[list[int]]:
    """How much an exchange sends after one that was large, and after several."""
    with gatherings() as sent:
        rng.adopt_main_state()
        large, sent[:] = sum(sent), []
        ddp.broadcast(1)
        after_one, sent[:] = [*sent], []
        for _ in range(2):
            ddp.broadcast(["a name of a file"] * 300_000)
        sent[:] = []
        ddp.broadcast(1)
    return [[large], after_one, sent]


def test_a_large_exchange_makes_no_others_as_large(ranks: RankPool) -> None:
    for (random_state,), after_one, after_several in ranks(2, after_large_ones):
        assert random_state > 10_000
        assert after_one == [4096], "the random state of each epoch"
        assert max(after_several) <= 1 << 22


@on_ranks(2, each=["meta torch.int64 (0, 3)"] * 2)
def test_an_empty_tensor_of_a_device_arrives_there() -> list[str]:
    world.enter(dataclasses.replace(world.current(), device=torch.device("meta")))
    parts = exchange.exchange("a test", torch.empty((0, 3), dtype=torch.int64, device="meta"))
    return [f"{part.device} {part.dtype} {tuple(part.shape)}" for part in parts]


def rows_gathered(sizes: list[int], dim: int) -> bool:
    own = torch.full((2, 3, 4), float(world.rank())).narrow(dim, 0, 2).repeat_interleave(4, dim)
    own = own.narrow(dim, 0, sizes[world.rank()]) if sizes[world.rank()] else own
    whole = collectives.gather_rows(own, sizes, dim)
    expected = torch.repeat_interleave(torch.arange(float(len(sizes))), torch.tensor(sizes))
    assert torch.equal(whole.movedim(dim, 0)[:, 0, 0], expected)
    return whole.size(dim) == sum(sizes) and not whole._is_view()


def test_rows_of_any_sizes_are_gathered(ranks: RankPool) -> None:
    for dim, sizes in enumerate(([3, 3, 1], [1, 3, 2], [4, 0, 0])):
        assert ranks(3, rows_gathered, sizes, dim) == [True] * 3


def collectives_of(sizes: list[int]) -> list[str]:
    """The calls by which rows of these sizes are gathered."""
    called: list[str] = []
    whole = group.whole()

    class Watched:
        def __getattr__(self, name: str) -> Any:
            called.append(name)
            return getattr(whole, name)

    before, group.whole = group.whole, Watched
    try:
        for size in sizes:
            rows = collectives.all_gather(torch.full((size,), world.rank(), dtype=torch.uint8))
            assert rows.shape == (world.world_size(), size)
            assert not size or [row.unique().item() for row in rows] == list(range(world.world_size()))
    finally:
        group.whole = before
    return called


def test_small_rows_need_no_collective(ranks: RankPool) -> None:
    for called in ranks(3, collectives_of, [0, 1, direct.MOST, direct.MOST + 1]):
        assert called == ["allgather"]


@on_ranks(2, all_give=["the script's own, [0, 1]", ", [0, 1]"])
def test_a_handler_that_raises_tears_no_message() -> str:
    """A timer that goes off, and raises, in the middle of a message; and an exchange after it."""

    def raises(number: int, frame: Any) -> None:
        raise TimeoutError("the script's own")

    if world.is_main():
        signal.signal(signal.SIGALRM, raises)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    else:
        time.sleep(0.6)
    raised = ""
    try:
        exchange.exchange("a test", "a note")
    except TimeoutError as error:
        raised = str(error)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return f"{raised}, {exchange.exchange('a test', world.rank())}"


PLAIN: list[Any] = [
    "\u2028", b"\0bytes", (1, ["a", (None,)]), {1, 2}, {"a": {1: (2,)}, (3, 4): None},
    datetime.datetime(2026, 11, 21, 3, 4, 5), datetime.timedelta(seconds=1.5), pathlib.Path("a/b"), uuid.UUID(int=7),
    time.localtime(0), np.float32(0.1), np.arange(6).reshape(2, 3), np.zeros((0, 2)), np.float64(0.1), np.bool_(True),
    np.array([1j, np.nan]), [np.str_("text"), datetime.date(1, 2, 3)], [torch.zeros(2), np.int64(3)], 2**80, math.inf,
]  # fmt: skip


def test_plain_values_come_back_as_they_were() -> None:
    for value in PLAIN:
        tensors: list[torch.Tensor] = []
        back = codec.loads(codec.dumps(value, tensors), tensors)
        assert (type(back), repr(back)) == (type(value), repr(value))


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
        max_leaves=12,
    )
)
def test_any_nesting_comes_back(value: Any) -> None:
    tensors: list[torch.Tensor] = []
    assert codec.loads(codec.dumps(value, tensors), tensors) == value


@on_ranks(2, each=["nothing", True, [4096], [0, 1], True])
def test_a_large_value_of_one_rank_takes_no_room_for_the_others() -> list[Any]:
    """What a single rank has travels alone: how many bytes all-gathers have taken, and what came."""
    taken: list[int] = []
    real = exchange.all_gather

    def all_gather(row: torch.Tensor) -> torch.Tensor:
        taken.append(len(row))
        return real(row)

    exchange._needed.clear()
    exchange._needed.extend([4096] * 2)
    with mock.patch.object(exchange, "all_gather", all_gather):
        told = exchange.exchange("a test", torch.arange(1 << 20) if world.rank() == 1 else "nothing")
        alone, taken[:] = [*taken], []
        both = exchange.exchange("a test", torch.full((1 << 18,), world.rank()))
    came = bool(told[1].equal(torch.arange(1 << 20)))
    return [told[0], came, alone, [each[0].item() for each in both], max(taken) > 1 << 20]


def test_other_values_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="object can't be sent to other ranks"):
        codec.dumps([object()], [])
    with pytest.raises(TypeError, match="array of Python objects can't be sent"):
        codec.dumps(np.array([object()]), [])


def test_arrays_travel_as_bytes_and_not_as_text() -> None:
    tensors: list[torch.Tensor] = []
    assert len(codec.dumps(np.zeros(1000), tensors)) < 100
    assert [tensor.numel() for tensor in tensors] == [8000]


def piggybacked() -> list[Any]:
    """Small tensors travel with what comes next, where all ranks have them."""
    arrived: dict[str, list[Any]] = {}

    def board(name: str) -> None:
        own = torch.full((world.rank() + 1,), world.rank())
        exchange.piggybacked[name] = Piggybacked(
            own, lambda all_of: arrived.update({name: [t.tolist() for t in all_of]})
        )

    board("both")
    if world.is_main():
        board("early")
    exchange.exchange("a test", [torch.ones(3), "note"])
    first = dict(arrived)
    board("early")
    exchange.exchange("a test")
    return [first, arrived["early"], len(exchange.piggybacked)]


def test_what_is_piggybacked_arrives_where_all_ranks_sent_them(ranks: RankPool) -> None:
    shares = [[0], [1, 1]]
    assert ranks(2, piggybacked) == [[{"both": shares}, shares, 0]] * 2


def diverged(action: str) -> None:
    def train() -> None:
        exchange.exchange("a test")

    if action == "kind":
        exchange.exchange("one" if world.is_main() else "other", [torch.ones(1000 * (world.rank() + 1))])
    elif action == "line" and world.is_main():
        train()
    else:
        train()


@pytest.mark.parametrize("action", ["kind", "line"])
def test_ranks_in_different_exchanges_are_told_both_lines(ranks: RankPool, action: str) -> None:
    with pytest.raises(RankError) as raised:
        ranks(2, diverged, action)
    for failure in raised.value.failures.values():
        assert "Divergence: the ranks have diverged: rank 0 at test_exchange.py:" in failure
        assert "; rank 1 at test_exchange.py:" in failure


def gathered() -> Any:
    rank = world.rank()
    with pytest.raises(TypeError, match="object can't be sent"):
        operations.gather(object())
    rows = torch.full((rank + 1, 2), float(rank), requires_grad=True)
    return operations.gather({"rows": rows, "number": 2**80 + rank, "kinds": (rank, {np.float32(rank)})})


def test_gather_gives_each_rank_s(ranks: RankPool) -> None:
    for found in ranks(3, gathered):
        rows = torch.cat([each["rows"] for each in found])
        assert rows[:, 0].tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]
        assert not rows.requires_grad
        assert sum(each["number"] for each in found) == 3 * 2**80 + 3
        assert [each["kinds"] for each in found] == [(rank, {np.float32(rank)}) for rank in range(3)]
        assert type(found[1]["kinds"][1].pop()) is np.float32


def test_with_one_rank_values_are_themselves() -> None:
    value = [object()]
    assert operations.broadcast(value) is value
    assert operations.gather(value)[0] is value


def test_a_name_of_a_newer_version_says_what_to_do() -> None:
    with pytest.raises(
        AttributeError, match=rf"dp2ddp_runtime {ddp.__version__} has no 'later': .* install the dp2ddp"
    ):
        ddp.later()
    with pytest.raises(ImportError):
        from dp2ddp_runtime import later  # noqa: F401


def test_what_python_asks_for_is_not_there_in_the_usual_way() -> None:
    with pytest.raises(AttributeError, match=r"^module 'dp2ddp_runtime' has no attribute '__wrapped__'$"):
        ddp.__wrapped__  # noqa: B018
    assert all(hasattr(ddp, name) for name in ddp.__all__)


class Sliced(torch.Tensor):
    """As MONAI's `MetaTensor`: what is known of its rows must go with them."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            raise ValueError("nothing is known of these rows")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_what_a_class_of_tensors_makes_of_its_own_is_nothing_to_sums_over_bits() -> None:
    tensor = torch.randn(3, 5)
    assert torch.equal(collectives.checksum(tensor.as_subclass(Sliced)), collectives.checksum(tensor))
