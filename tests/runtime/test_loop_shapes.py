"""Loops that draw batches in their own ways get the original's batches, and leave its random numbers behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Callable

import dp2ddp_runtime as ddp
import numpy as np
import pytest
import torch
from loading import Numbers
from rank_pool import RankPool
from torch.utils.data import DataLoader, Sampler

Make = Callable[..., Any]


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


SHAPES = [next_until_it_stops, two_iterators_over_one_loader, left_early]


def drawn(shape: int, workers: int, noisy: bool, wrap: Make | None) -> list[Any]:
    """All that a loop yields, and the next random number."""
    ddp.seed_everything(shape)
    wrap = ddp.shard_loader if wrap is None else wrap

    def make(size: int, batch: int = 4) -> Any:
        return wrap(DataLoader(Numbers(size, noisy), batch, shuffle=True, num_workers=workers))

    found: list[Any] = [_listed(value) for value in SHAPES[shape](make)]
    return [*found, torch.rand(1).item()]


def _listed(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_listed(each) for each in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def drawn_by_all(workers: int, noisy: bool) -> list[Any]:
    return [drawn(shape, workers, noisy, None) for shape in range(len(SHAPES))]


@pytest.mark.parametrize(("n", "workers", "noisy"), [(3, 0, True), (2, 1, False)])
def test_every_loop_gets_the_originals_batches(ranks: RankPool, n: int, workers: int, noisy: bool) -> None:
    per_rank = ranks(n, drawn_by_all, workers, noisy)
    for index, shape in enumerate(SHAPES):
        original = drawn(index, workers, noisy, lambda loader: loader)
        for result in per_rank:
            assert result[index] == original, shape.__name__


class Learns(Sampler[Any]):
    """What it yields tells how many batches the script had been through when it was asked."""

    def __init__(self, as_batches: bool, length: int) -> None:
        self.as_batches, self.length = as_batches, length
        self.steps = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.length):
            drawn = np.random.randint(100)
            yield [1000 * self.steps + 10 * number + i + drawn for i in range(3)] if self.as_batches else self.steps


def learned(**options: Any) -> list[Any]:
    """Three passes; the first ends early. The script draws beside the sampler, which draws when it is asked."""
    np.random.seed(3)
    found: list[Any] = []
    for as_batches in (True, False):
        sampler = Learns(as_batches, 11 if as_batches else 32)
        how = {"batch_sampler": sampler} if as_batches else {"sampler": sampler, "batch_size": 3}
        loader = ddp.shard_loader(DataLoader(Numbers(10**6), **how, **options))  # type: ignore[arg-type]
        for stop in (4, 0, 0):
            for number, batch in enumerate(loader, start=1):
                found.append([batch.tolist(), np.random.rand()])
                sampler.steps += 1
                if number == stop:
                    break
    return found


WORKERS = {"num_workers": 3, "prefetch_factor": 3, "persistent_workers": True}


@pytest.mark.parametrize(("n", "options"), [(2, WORKERS), (3, {"num_workers": 0})])
def test_a_sampler_that_learns_is_asked_when_the_originals_is(ranks: RankPool, n: int, options: dict[str, Any]) -> None:
    [expected] = ranks(1, learned, join=False, **options)  # pytest's own process has threads: it isn't forked
    for found in ranks(n, learned, **options):
        assert found == expected
