"""Random streams: what is shared stays shared, what is a rank's own differs, and seeds mean what they meant."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import numpy as np
import pytest
import torch
from dp2ddp_runtime.base import world
from dp2ddp_runtime.batches import loader
from dp2ddp_runtime.ranks import rng
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_pool import RankPool
from torch.utils.data import DataLoader
from training import Sized


def draw(count: int = 1) -> list[tuple[float, ...]]:
    """Draws from every generator; of NumPy's normal numbers, which come in pairs, both."""
    return [
        (torch.rand(1).item(), random.random(), random.gauss(0, 1), float(np.random.rand()), *np.random.randn(2))
        for _ in range(count)
    ]


def draw_odd() -> tuple[float, ...]:
    """Uses up, or leaves behind, cached normal numbers."""
    return torch.randn(1).item(), random.gauss(0, 1), float(np.random.randn())


@pytest.fixture
def rank_1_of_2() -> Iterator[None]:
    world.enter(world.World(1, 1, 2, 2, torch.device("cpu"), ready=True))
    yield
    world.enter(world.World())


@pytest.mark.usefixtures("rank_1_of_2")
def test_epochs_have_streams_of_their_own_that_can_be_had_again() -> None:
    def epoch(number: int) -> list[tuple[float, ...]]:
        rng.loading.restart(number)
        with rng.loading:
            return draw(2)

    rng.seed_everything(3)
    with rng.loading:
        start = draw(2)
    assert start == epoch(0) != epoch(1)
    assert epoch(1) == epoch(1) != epoch(2)


places = st.sampled_from(["script", "forward", "loading", "shared"])
DRAWS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.rand(1).item(),
    "torch, normal": lambda: torch.randn(1).item(),
    "random": random.random,
    "random, normal": lambda: random.gauss(0, 1),
    "numpy": lambda: float(np.random.rand()),
    "numpy, normal": lambda: float(np.random.randn()),
    "nothing": lambda: None,
}


def go(place: str, draws: Sequence[str]) -> list[Any]:
    """Draw somewhere."""
    with contextlib.ExitStack() as stack:
        if place != "script":
            stack.enter_context(rng.loading if place == "loading" else rng.forward)
        if place == "shared":
            stack.enter_context(rng.shared())
        return [DRAWS[name]() for name in draws]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(places, st.lists(st.sampled_from(sorted(DRAWS)), max_size=4)), max_size=8))
def test_where_ranks_draw_what_is_of_no_consequence_elsewhere(steps: list[tuple[str, list[str]]]) -> None:
    """Each of the three streams gives what it gives where nobody draws from the others; the shared one also what it
    gives where there are no others."""
    ours = {"script": "shared", "shared": "shared", "forward": "forward", "loading": "loading"}
    world.enter(world.World(1, 1, 2, 2, torch.device("cpu"), ready=True))
    try:
        rng.seed_everything(9)
        got = [go(place, draws) for place, draws in steps]
        for stream in ("shared", "forward", "loading"):
            rng.seed_everything(9)
            alone = [go(place, draws) if ours[place] == stream else None for place, draws in steps]
            assert all(one is None or one == other for one, other in zip(alone, got))
        rng.seed_everything(9)
        assert [[DRAWS[name]() for name in draws] for place, draws in steps if ours[place] == "shared"] == [
            values for (place, _), values in zip(steps, got) if ours[place] == "shared"
        ]
    finally:
        world.enter(world.World())


def test_states_are_alike_only_if_all_generators_are() -> None:
    rng.seed_everything(5)
    before = rng.capture()
    assert rng.alike(before, rng.capture())
    for drawing in (random.random, lambda: random.gauss(0, 1), np.random.rand, np.random.randn, lambda: torch.rand(1)):
        drawing()
        assert not rng.alike(before, rng.capture())
        rng.restore(before)
        assert rng.alike(before, rng.capture())


def test_seed_everything_is_what_seeding_by_hand_gives() -> None:
    random.seed(2**40 + 5)
    np.random.seed(5 + 2**40 % 2**32)
    torch.manual_seed(2**40 + 5)
    expected = draw(3)
    for seed in (2**40 + 5, float(2**40 + 5)):  # torch takes both
        rng.seed_everything(seed)  # type: ignore[arg-type]
        assert draw(3) == expected


def test_deterministic_sets_the_cudnn_flags() -> None:
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    try:
        torch.backends.cudnn.benchmark = True
        rng.seed_everything(1)
        assert torch.backends.cudnn.benchmark
        rng.seed_everything(1, deterministic=True)
        assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before


def adopt() -> Any:
    rng.seed_everything(10 + world.rank())
    own_generator = torch.Generator().manual_seed(world.rank())
    draw_odd()
    draw(1 + world.rank())
    before = draw(1)
    draw_odd()
    rng.adopt_main_state([own_generator])
    after = [draw_odd(), *draw(2), torch.rand(1, generator=own_generator).item()]
    with rng.forward:
        own = draw(1)
    return before, after, own, torch.initial_seed()


def test_all_ranks_adopt_rank_0s_state(ranks: RankPool) -> None:
    (before_0, shared_0, own_0, seed_0), (before_1, shared_1, own_1, seed_1) = ranks(2, adopt)
    assert before_0 != before_1
    assert shared_0 == shared_1
    assert own_0 != own_1
    assert seed_0 == seed_1 == 10


def _streams_after_seeding() -> list[float]:
    found = []
    for seed in (3, 3, 40):
        torch.manual_seed(seed)
        with rng.forward:
            found.append(torch.rand(1).item())
        with rng.forward:  # goes on
            found.append(torch.rand(1).item())
    return found


def test_own_streams_begin_anew_where_the_script_seeds_torch(ranks: RankPool) -> None:
    first, second = ranks(2, _streams_after_seeding)
    assert first[:2] == first[2:4]  # also with the seed that it had
    assert len({*first, *second}) == 8


def _draws_of_what_a_module_holds() -> list[float]:
    made = {"a": random.Random(world.rank()), "b": np.random.RandomState(world.rank())}
    made["c"] = np.random.default_rng(world.rank())
    globals().update(made)
    try:
        rng.adopt_main_state()
    finally:
        for name in made:
            del globals()[name]
    return [made["a"].random(), made["b"].rand(), made["c"].random()]


def test_generators_that_modules_hold_get_rank_0s_state(ranks: RankPool) -> None:
    wanted = [random.Random(0).random(), np.random.RandomState(0).rand(), np.random.default_rng(0).random()]
    assert ranks(2, _draws_of_what_a_module_holds) == [wanted, wanted]


def drawn() -> list[Any]:
    """From generators that are made here, as a library makes them, and from global ones that are seeded anew."""
    before = rng.capture()
    random.seed()
    np.random.seed()
    torch.seed()
    numbers = [
        torch.rand(1).item(),
        random.random(),
        np.random.rand(),
        random.Random().random(),
        np.random.default_rng().random(),
    ]
    rng.restore(before)
    sequence = np.random.SeedSequence()
    return [*numbers, np.random.RandomState().rand(), np.random.Philox().random_raw(), sequence.generate_state(1)[0]]


class Drawing(Sized):
    """A data set, whose samples are made of what is drawn for them."""

    size = 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(list(map(float, drawn())), dtype=torch.float64)


def _everywhere() -> dict[str, list[Any]]:
    found = {"script": [*drawn(), *drawn()]}
    if world.is_main():  # what rank 0 alone has made elsewhere parts nobody
        np.random.default_rng()
    found["script again"] = drawn()
    thread = threading.Thread(target=lambda: found.update(thread=drawn()))
    thread.start()
    thread.join()
    with rng.forward:
        found["forward"] = drawn()
    with rng.loading:
        found["samples"] = drawn()
    for workers in (0, 1):
        whole = [*loader.shard_loader(DataLoader(Drawing(), 4, num_workers=workers))]
        found[f"samples of {workers} workers"] = torch.cat([*map(torch.as_tensor, whole)]).flatten().tolist()
    found["the system"] = [os.urandom(8), tempfile.mktemp(), random.SystemRandom().random()]
    return found


def test_generators_without_a_seed_begin_alike_where_the_ranks_draw_alike(ranks: RankPool) -> None:
    first, second = ranks(2, _everywhere)
    for place, numbers in first.items():
        assert len({*numbers}) == len(numbers), f"{place}: two generators begin alike"
        is_whole = place.startswith(("script", "samples of"))  # a batch is gathered where the script looks at it
        assert [a == b for a, b in zip(numbers, second[place])] == [is_whole] * len(numbers), place
