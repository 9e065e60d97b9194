"""Random streams: what is shared stays shared, what is a rank's own differs, and seeds mean what they meant."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from dp2ddp_runtime import streams, twisters, world
from rank_pool import RankPool


def draw(count: int = 1) -> list[tuple[float, ...]]:
    """Draws from every generator, cached normal numbers included."""
    return [
        (torch.rand(1).item(), random.random(), random.gauss(0, 1), float(np.random.rand()), float(np.random.randn()))
        for _ in range(count)
    ]


@pytest.fixture
def rank_1_of_2() -> Iterator[None]:
    world.enter(world.World(1, 1, 2, 2, torch.device("cpu"), ready=True))
    yield
    world.enter(world.World())


@pytest.mark.usefixtures("rank_1_of_2")
def test_the_shared_stream_goes_on_as_if_nobody_had_drawn_from_another() -> None:
    streams.seed_everything(3)
    expected = draw(8)
    streams.seed_everything(3)
    got = draw(3)
    with streams.forward:
        draw(5)
        with streams.shared:
            got += draw(2)
        draw(1)
    with streams.loading:
        pass
    got += draw(3)
    assert got == expected


@pytest.mark.usefixtures("rank_1_of_2")
def test_an_own_stream_goes_on_where_it_was_left_and_starts_at_its_seed() -> None:
    streams.seed_everything(3)
    own = []
    with streams.forward:
        own += draw(3)
        with streams.forward, streams.loading:
            own += draw(1)
        with streams.shared:
            draw(1)
        own += draw(1)
    with contextlib.suppress(KeyError), streams.forward:
        own += draw(2)
        raise KeyError
    with streams.forward:
        own += draw(1)
    streams.seed_everything(streams.replica_seed(3, 1))
    assert own == draw(8)


@pytest.mark.usefixtures("rank_1_of_2")
def test_a_seed_that_the_script_sets_itself_starts_the_own_stream_anew() -> None:
    streams.seed_everything(3)
    with streams.forward:
        first = draw(1)
    torch.manual_seed(4)
    with streams.forward:
        second = draw(1)
    torch.manual_seed(3)
    with streams.forward:
        assert draw(1) == first != second


@pytest.mark.usefixtures("rank_1_of_2")
def test_epochs_have_streams_of_their_own_that_can_be_had_again() -> None:
    def epoch(number: int) -> list[tuple[float, ...]]:
        streams.loading.restart(number)
        with streams.loading:
            return draw(2)

    streams.seed_everything(3)
    with streams.loading:
        start = draw(2)
    assert start == epoch(0) != epoch(1)
    assert epoch(1) == epoch(1) != epoch(2)


@pytest.mark.usefixtures("rank_1_of_2")
@pytest.mark.parametrize("readable", [True, False])
def test_the_generators_states_are_kept_with_and_without_their_memory(
    monkeypatch: pytest.MonkeyPatch, readable: bool
) -> None:
    if not readable:
        monkeypatch.setattr(twisters._python, "_memory", None)
        monkeypatch.setattr(twisters._numpy, "_bits", twisters._numpy._state._bit_generator)  # it was looked at
        monkeypatch.setattr(twisters._numpy, "_memory", None)
    else:
        assert twisters._python._memory is not None
    streams.seed_everything(5)
    expected = [*draw(1), (random.gauss(0, 1), float(np.random.randn())), *draw(2)]
    streams.seed_everything(5)
    got: list[tuple[float, ...]] = draw(1)
    with streams.forward:
        random.gauss(0, 1)  # leaves a cached number behind
        np.random.randn()
    got.append((random.gauss(0, 1), float(np.random.randn())))
    with streams.forward:
        pass
    assert got + draw(2) == expected


def test_states_are_alike_only_if_all_generators_are() -> None:
    streams.seed_everything(5)
    before = streams.capture()
    assert streams.alike(before, streams.capture())
    for drawing in (random.random, lambda: random.gauss(0, 1), np.random.rand, np.random.randn, lambda: torch.rand(1)):
        drawing()
        assert not streams.alike(before, streams.capture())
        streams.restore(before)
        assert streams.alike(before, streams.capture())


@pytest.mark.usefixtures("rank_1_of_2")
@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.SFC64, np.random.Philox])
def test_numpys_generator_may_be_another_one(kind: Any) -> None:
    before: Any = np.random.mtrand._rand._bit_generator
    expected = np.random.RandomState(kind(3)).rand(3).tolist()
    with streams.forward:  # an own stream that is a Mersenne Twister's
        pass
    try:
        np.random.set_bit_generator(kind(3))
        got, state = [np.random.rand()], streams.capture()
        with streams.forward:
            own = np.random.rand()
        got.append(np.random.rand())
        assert not streams.alike(state, streams.capture())
        streams.restore(state)
        assert streams.alike(state, streams.capture())
        assert np.random.rand() == got[1]
        assert [*got, np.random.rand()] == expected
        assert own not in expected
    finally:
        np.random.set_bit_generator(before)
    with streams.forward:
        pass


def test_seed_everything_is_what_seeding_by_hand_gives() -> None:
    streams.seed_everything(2**40 + 5)
    got = draw(3)
    random.seed(2**40 + 5)
    np.random.seed(5 + 2**40 % 2**32)
    torch.manual_seed(2**40 + 5)
    assert got == draw(3)


def test_deterministic_sets_the_cudnn_flags() -> None:
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    try:
        torch.backends.cudnn.benchmark = True
        streams.seed_everything(1)
        assert torch.backends.cudnn.benchmark
        streams.seed_everything(1, deterministic=True)
        assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


def adopt(oversized: bool) -> Any:
    if oversized:
        streams._SLOT = 4096
    streams.seed_everything(10 + world.rank())
    draw(1 + world.rank())
    before = draw(1)
    streams.adopt_main_state()
    streams._SLOT = 32768
    with streams.forward:
        own = draw(1)
    return before, draw(3), own, torch.initial_seed()


@pytest.mark.parametrize("oversized", [False, True])
def test_all_ranks_adopt_rank_0s_state(ranks: RankPool, oversized: bool) -> None:
    (before_0, *shared_0, own_0, seed_0), (before_1, *shared_1, own_1, seed_1) = ranks(2, adopt, oversized)
    assert before_0 != before_1
    assert shared_0 == shared_1
    assert own_0 != own_1
    assert seed_0 == seed_1 == 10
