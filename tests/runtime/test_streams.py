"""Random streams: what is shared stays shared, what is a rank's own differs, and seeds mean what they meant."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Callable

import dp2ddp_runtime as ddp
import numpy as np
import pytest
import torch
from dp2ddp_runtime import streams
from dp2ddp_runtime.world import world
from hypothesis import given, settings
from hypothesis import strategies as st
from loading import Sized
from rank_pool import RankPool, on_ranks
from torch import nn
from torch.utils.data import DataLoader


def draw(count: int = 1) -> list[tuple[float, ...]]:
    """Draws from every generator; of NumPy's normal numbers, which come in pairs, both."""
    return [
        (torch.rand(1).item(), random.random(), random.gauss(0, 1), float(np.random.rand()), *np.random.randn(2))
        for _ in range(count)
    ]


def draw_odd() -> tuple[float, ...]:
    """Uses up, or leaves behind, cached normal numbers."""
    return torch.randn(1).item(), random.gauss(0, 1), float(np.random.randn())


DRAWS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.rand(1).item(),
    "torch, normal": lambda: torch.randn(1).item(),
    "random": random.random,
    "random, normal": lambda: random.gauss(0, 1),
    "numpy": lambda: float(np.random.rand()),
    "numpy, normal": lambda: float(np.random.randn()),
    "nothing": lambda: None,
}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from(sorted(DRAWS)), max_size=4)), max_size=8))
def test_where_a_forward_draws_the_shared_stream_stays_as_it_was(steps: list[tuple[bool, list[str]]]) -> None:
    """It gives what it gives where there are no forwards; a forward's what it gives where the script draws nothing."""
    own = streams.Stream(rank=1)

    def go(which: Sequence[bool]) -> list[Any]:
        ddp.seed_everything(9)
        streams._Seeding.count += 1  # as `setup` lets `torch.manual_seed` do
        found = []
        for is_own, draws in steps:
            if is_own in which:
                with own if is_own else nullcontext():
                    found.append([DRAWS[name]() for name in draws])
        return found

    both = iter(go([True, False]))
    parts = {is_own: iter(go([is_own])) for is_own in (True, False)}
    for is_own, _ in steps:
        assert next(both) == next(parts[is_own])


@pytest.mark.parametrize("name", sorted(DRAWS))
def test_a_position_tells_whether_something_was_drawn_and_leads_back(name: str) -> None:
    own = random.Random(3), np.random.default_rng(3), np.random.RandomState(3), torch.Generator()
    ddp.seed_everything(5)
    before = streams.Position(own)
    assert not before.moved
    first = DRAWS[name]()
    assert before.moved == (name != "nothing")
    before.go_back()
    assert not before.moved
    assert first == DRAWS[name]()
    before.go_back()
    numbers = [own[0].random(), own[1].random(), own[2].rand(), torch.rand((), generator=own[3]).item()]
    assert before.moved
    before.go_back()
    assert [own[0].random(), own[1].random(), own[2].rand(), torch.rand((), generator=own[3]).item()] == numbers


def test_seed_everything_is_what_seeding_by_hand_gives() -> None:
    random.seed(2**40 + 5)
    np.random.seed(5 + 2**40 % 2**32)
    torch.manual_seed(2**40 + 5)
    expected = draw(3)
    for seed in (2**40 + 5, float(2**40 + 5)):  # torch takes both
        ddp.seed_everything(seed)  # type: ignore[arg-type]
        assert draw(3) == expected


def adopt() -> Any:
    ddp.seed_everything(10 + world.rank)
    mine = random.Random(world.rank), np.random.default_rng(world.rank), torch.Generator().manual_seed(world.rank)
    draw_odd()
    draw(1 + world.rank)
    before = draw(1)
    draw_odd()
    streams.adopt(mine)
    after = [draw_odd(), *draw(2), mine[0].random(), mine[1].random(), torch.rand(1, generator=mine[2]).item()]
    with streams.forward:
        own = draw(1)
    return before, after, own, torch.initial_seed()


def test_all_ranks_adopt_rank_0s_states(ranks: RankPool) -> None:
    (before_0, shared_0, own_0, seed_0), (before_1, shared_1, own_1, seed_1) = ranks(2, adopt)
    assert before_0 != before_1
    assert shared_0 == shared_1
    assert own_0 != own_1
    assert seed_0 == seed_1 == 10


def own_numbers() -> list[float]:
    found = []
    streams.own_start()
    for seed in (3, 3, 40):
        torch.manual_seed(seed)
        for _ in range(2):
            with streams.forward:
                found.append(torch.rand(1).item())
    return found


def test_own_streams_begin_anew_where_the_script_seeds_torch(ranks: RankPool) -> None:
    first, second = ranks(2, own_numbers)
    assert first[:2] == first[2:4]  # also with the seed that it had
    assert len({*first, *second}) == 8
    generator = torch.Generator().manual_seed(streams.replica_seed(3, 1))
    assert second[0] == torch.rand(1, generator=generator).item()


class Drawing(Sized):
    """Samples draw, and take their time."""

    size = 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        time.sleep(0.0005 * (1 + world.rank))
        return torch.rand(4) + index, random.random() + np.random.rand()


class Ahead(DataLoader[Any]):
    """As in libraries that read ahead: the main thread begins the pass, and a thread goes on with it."""

    def __iter__(self) -> Any:
        return iter([super().__iter__()])


def read_in_a_thread(kind: Any, shard: bool) -> Any:
    """A thread loads ahead while a model with dropout is trained."""
    ddp.seed_everything(3)
    loader: Any = kind(Drawing(), 4, shuffle=True)
    if shard:
        loader = ddp.shard_loader(loader)
    ahead: queue.Queue[Any] = queue.Queue(2)

    begun = [next(iter(loader)) for _ in range(2)] if kind is Ahead else [loader] * 2

    def read() -> None:
        for each in begun:
            for batch in each:
                ahead.put(batch)
        ahead.put(None)

    thread = threading.Thread(target=read)
    thread.start()
    found = []
    dropout = nn.Dropout() if shard else nn.Identity()
    while (batch := ahead.get()) is not None:
        with streams.forward if shard else nullcontext():
            time.sleep(0.001 * (2 - world.rank))
            dropout(torch.ones(100))
        found.append([column.tolist() for column in batch])
    thread.join()
    return found, torch.rand(1).item()


@pytest.mark.parametrize(("n", "kind"), [(3, DataLoader), (2, Ahead)])
def test_a_thread_that_reads_a_loader_gets_the_originals_batches(ranks: RankPool, n: int, kind: Any) -> None:
    expected = read_in_a_thread(kind, False)
    for found in ranks(n, read_in_a_thread, kind, True):
        assert found == expected


@on_ranks(2, each=True)
def test_a_thread_may_go_on_with_a_pass_that_the_main_thread_began() -> bool:
    """Also while the main thread reads another loader, in another order on each rank."""
    for workers in (0, 1):
        found: list[Any] = []
        batches = iter(ddp.shard_loader(DataLoader(range(40), 4, num_workers=workers)))
        others = ddp.shard_loader(DataLoader(range(100, 140), 4))
        first = next(batches)

        def read(batches: Any, found: list[Any]) -> None:
            for batch in batches:
                time.sleep(0.002 * (1 - world.rank))
                found.append(batch)

        thread = threading.Thread(target=read, args=(batches, found))
        thread.start()
        held = []
        for other in others:
            time.sleep(0.003 * world.rank)
            held.append(other)
        thread.join()
        for start, each in ((0, (first, *found)), (100, held)):
            assert [batch.tolist() for batch in each] == torch.arange(start, start + 40).view(10, 4).tolist()
    return True
