"""Whole batches from loaders without workers: who loads what, and that it never shows in what the batches hold."""

from __future__ import annotations

import random
import time
from typing import Any, Callable

import pytest
import torch
from dp2ddp_runtime import columns, exchange, rng, together, world
from dp2ddp_runtime import loader as loaders
from dp2ddp_runtime.together import Way
from rank_pool import RankPool
from torch.utils.data import DataLoader, Dataset

SIZE = 50


class Samples(Dataset[Any]):
    """Samples that take `seconds` on rank `slow`, or on all; counts how many were loaded."""

    def __init__(self, seconds: float = 0.0, slow: int | None = None) -> None:
        self.seconds = seconds if slow in (None, world.rank()) else 0.0
        self.loaded = 0

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        self.loaded += 1
        time.sleep(self.seconds)
        return torch.full((3,), float(index)), f"name {index}", {"label": index % 10, "raw": bytes([index])}


class Rare(Samples):
    """A few samples draw from the shared stream."""

    def __getitem__(self, index: int) -> Any:
        drawn = random.random() + float(torch.rand(1)) if index % 10 == 3 and self.loaded >= 30 else 0.0
        return *super().__getitem__(index), drawn


class Own(Samples):
    """Samples with random numbers that no rank shares, from the `first` on."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first
        self.generator = random.Random()

    def __getitem__(self, index: int) -> Any:
        return *super().__getitem__(index), self.generator.random() if self.loaded > self.first else 0.0


def described(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [described(item) for item in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def delay_gathering(seconds: float) -> Callable[[], None]:
    """Make gathering a batch take longer; returns what undoes that."""
    real = columns.Gathering.wait

    def wait(self: Any) -> Any:
        time.sleep(seconds)
        return real(self)

    columns.Gathering.wait = wait  # type: ignore[method-assign]
    return lambda: setattr(columns.Gathering, "wait", real)


def read(dataset: Any, epochs: int, size: int = 5, wrapped: bool = True) -> tuple[list[Any], Any]:
    """The batches, each with a number that the script draws after it; and the loader."""
    rng.seed_everything(4)
    original = DataLoader(dataset, size, shuffle=True)
    loader = loaders.shard_loader(original, gather=True) if wrapped else original
    batches = [(described(batch), torch.rand(1).item()) for _ in range(epochs) for batch in loader]
    return batches, loader


def cheap_samples(seconds: float, slow: int | None, gathering: float) -> Any:
    """How the ranks go on after the trial, what each loads then, and in how many collectives."""
    undo = delay_gathering(gathering)
    real, calls = exchange.start_all_gather, []
    exchange.start_all_gather = lambda *args: calls.append(1) or real(*args)
    try:
        data = Samples(seconds, slow)
        first, loader = read(data, 1)
        before, data.loaded = data.loaded, 0
        calls.clear()
        second = [described(batch) for batch in loader]
    finally:
        undo()
        exchange.start_all_gather = real
    return [batch for batch, _ in first], second, loader._together.way, before, data.loaded, len(calls)


def originals() -> tuple[list[Any], list[Any]]:
    first, loader = read(Samples(), 1, wrapped=False)
    return [batch for batch, _ in first], [described(batch) for batch in loader]


def test_cheap_samples_are_loaded_by_every_rank_and_nothing_travels(ranks: RankPool) -> None:
    for n in (2, 3):
        for first, second, way, before, loaded, calls in ranks(n, cheap_samples, 0.0, None, 0.05):
            assert (first, second) == originals()
            assert way is Way.ALONE
            assert before == loaded == SIZE
            assert calls == 1, "the checksums at the end"


def test_costly_samples_are_shared(ranks: RankPool) -> None:
    for first, second, way, before, loaded, calls in ranks(2, cheap_samples, 0.02, None, 0.0):
        assert (first, second) == originals()
        assert way is Way.SHARED
        # Six batches of 5 were loaded by both ranks; then 3 and 2 rows each.
        assert before in (30 + 4 * 3, 30 + 4 * 2)
        assert loaded in (10 * 3, 10 * 2)
        assert calls == 10


@pytest.mark.parametrize("slow", [0, 1])
def test_the_slowest_ranks_samples_decide_for_all(ranks: RankPool, slow: int) -> None:
    # The other rank waits for it in the collective: that is no cost of gathering.
    for first, second, way, *_ in ranks(2, cheap_samples, 0.02, slow, 0.0):
        assert (first, second) == originals()
        assert way is Way.SHARED


def rare(seconds: float) -> Any:
    batches, loader = read(Rare(seconds), 3)
    return batches, loader._together.way


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_samples_that_draw_now_and_then_draw_as_in_the_original(ranks: RankPool, seconds: float) -> None:
    """None draws in the trial. Whether the work is shared after it is a matter of time, but the values are not."""
    expected, _ = read(Rare(), 3, wrapped=False)
    assert any(batch[3] != [0.0] * 5 for batch, _ in expected)
    for batches, way in ranks(2, rare, seconds):
        assert batches == expected
        assert way is Way.ALONE


def unshared(first: int, size: int, epochs: int) -> Any:
    undo = delay_gathering(0.05)
    try:
        batches, loader = read(Own(first), epochs, size)
        return batches, loader._together.way
    finally:
        undo()


def test_random_numbers_that_no_rank_shares_are_always_gathered(ranks: RankPool) -> None:
    for n in (2, 3):
        (batches, way), *others = ranks(n, unshared, 0, 5, 2)
        assert way is Way.SHARED
        assert all(other == (batches, way) for other in others)
        assert len({value for batch, _ in batches for value in batch[3]}) == 2 * SIZE


def complaint(first: int, size: int) -> tuple[str, int]:
    undo = delay_gathering(0.01)
    data = Own(first)
    try:
        with pytest.raises(RuntimeError, match="Seed that generator") as told:
            read(data, 3, size)
        return str(told.value), data.loaded
    finally:
        undo()


def test_ranks_that_part_after_the_trial_are_told(ranks: RankPool) -> None:
    for size, seen in ((5, SIZE), (1, 6 + 32)):
        (message, loaded), other = ranks(2, complaint, 6 * size, size)
        assert (message, loaded) == other
        assert "different batches from a DataLoader" in message
        assert loaded == seen, "at the end of the iteration, or after 32 batches"


def test_batches_are_compared_bit_by_bit() -> None:
    one = {"x": torch.tensor([[1.0, float("nan")], [0.0, 2.0]]), "names": ["a", "b"], "none": torch.empty(0, 2)}
    assert together.same(one, dict(one))
    zero = torch.tensor([[1.0, float("nan")], [-0.0, 2.0]])
    for name, value in (
        ("x", zero),
        ("x", one["x"].double()),
        ("x", one["x"][:1]),
        ("x", one["x"].to_sparse()),
        ("names", ["a", "c"]),
        ("names", ("a", "b")),
        ("none", torch.empty(2, 0)),
    ):
        other = {**one, name: value}
        assert not together.same(one, other), (name, value)
        assert not together.same(other, one)
    sums = [together.checksum({**one, "x": value}, 0) for value in (one["x"], zero, one["x"].flip(0), one["x"].t())]
    assert len(set(sums)) == 4
    assert together.checksum(one, 0) == sums[0] != together.checksum(one, 1)
    assert together.checksum({**one, "names": ["a", "c"]}, 0) != sums[0]
