"""Loops that draw batches in their own ways get the original's batches, and leave its random numbers behind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Callable

import pytest
import torch
from dp2ddp_runtime.batches import loader as loaders
from dp2ddp_runtime.ranks import rng
from rank_pool import RankPool
from torch.utils.data import DataLoader, Dataset

Make = Callable[..., Any]


class Numbers(Dataset[torch.Tensor]):
    """Sample `i` is the number `i`, with noise if `noisy`."""

    def __init__(self, size: int, noisy: bool = False) -> None:
        self.size, self.noisy = size, noisy

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index)) + (torch.rand(()) if self.noisy else 0)


def zipped_with_a_cycle(make: Make) -> Iterator[Any]:
    for _ in range(2):
        yield from enumerate(zip(make(11), itertools.cycle(make(5))))


def next_until_it_stops(make: Make) -> Iterator[Any]:
    loader = make(9)
    batches = iter(loader)
    for _ in range(8):
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        yield batch


def validation_every_other_step(make: Make) -> Iterator[Any]:
    train, check = make(9), make(5)
    for _ in range(2):
        for step, batch in enumerate(train):
            yield batch
            if step % 2:
                yield list(check)


def two_iterators_over_one_loader(make: Make) -> Iterator[Any]:
    loader = make(9)
    first, second = iter(loader), iter(loader)
    for _ in range(2):
        yield next(first), next(second)
    yield next(second)
    yield list(loader)
    yield list(first)


def left_early(make: Make) -> Iterator[Any]:
    loader = make(13)
    for epoch in range(3):
        for step, batch in enumerate(loader):
            yield batch
            if step == epoch:
                break


SHAPES = [
    zipped_with_a_cycle,
    next_until_it_stops,
    validation_every_other_step,
    two_iterators_over_one_loader,
    left_early,
]


def drawn(shape: int, workers: int, noisy: bool, wrap: Make | None) -> list[Any]:
    """All that a loop yields, and the next random number."""
    rng.seed_everything(shape)
    wrap = loaders.shard_loader if wrap is None else wrap

    def make(size: int, batch: int = 4) -> Any:
        loader = DataLoader(Numbers(size, noisy), batch, shuffle=True, num_workers=workers)
        return wrap(loader)

    found: list[Any] = [_listed(value) for value in SHAPES[shape](make)]
    return [*found, torch.rand(1).item()]


def _listed(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_listed(each) for each in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def drawn_by_all(workers: int, noisy: bool) -> list[Any]:
    return [drawn(shape, workers, noisy, None) for shape in range(len(SHAPES))]


@pytest.mark.parametrize(("n", "workers", "noisy"), [(2, 0, False), (3, 0, True), (2, 1, False)])
def test_every_loop_gets_the_originals_batches(ranks: RankPool, n: int, workers: int, noisy: bool) -> None:
    per_rank = ranks(n, drawn_by_all, workers, noisy)
    for index, shape in enumerate(SHAPES):
        original = drawn(index, workers, noisy, lambda loader: loader)
        for result in per_rank:
            assert result[index] == original, shape.__name__
