"""Loops that draw batches in their own ways get the original's batches, and leave its random numbers behind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Callable

import pytest
import torch
from dp2ddp_runtime.batches import loader as loaders
from dp2ddp_runtime.model import wrapped as models
from dp2ddp_runtime.ranks import rng
from rank_pool import RankPool
from torch import nn
from torch.utils.data import DataLoader, Dataset

from dp2ddp.verify.emulate.oracle import EmulatedDataParallel

Make = Callable[..., Any]


class Numbers(Dataset[torch.Tensor]):
    """Sample `i` is the number `i`, with noise if `noisy`."""

    def __init__(self, size: int, noisy: bool = False) -> None:
        self.size, self.noisy = size, noisy

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index)) + (torch.rand(()) if self.noisy else 0)


def zipped(make: Make) -> Iterator[Any]:
    yield from zip(make(11), make(7))


def zipped_with_a_cycle(make: Make) -> Iterator[Any]:
    for _ in range(2):
        yield from enumerate(zip(make(11), itertools.cycle(make(5))))


def a_part_of_each_epoch(make: Make) -> Iterator[Any]:
    loader = make(13)
    for _ in range(3):
        yield from itertools.islice(loader, 2)


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


def two_that_run_out_apart(make: Make) -> Iterator[Any]:
    sources = [make(9), make(5, batch=2)]
    open_ones = [iter(loader) for loader in sources]
    for step in range(12):
        which = step % 2
        try:
            batch = next(open_ones[which])
        except StopIteration:
            open_ones[which] = iter(sources[which])
            batch = next(open_ones[which])
        yield batch


def the_first_batch_again_and_again(make: Make) -> Iterator[Any]:
    loader = make(9)
    for _ in range(4):
        yield next(iter(loader))


def forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def a_generator_left_open(make: Make) -> Iterator[Any]:
    batches = forever(make(9))
    for _ in range(7):
        yield next(batches)


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
    zipped,
    zipped_with_a_cycle,
    a_part_of_each_epoch,
    next_until_it_stops,
    two_that_run_out_apart,
    the_first_batch_again_and_again,
    a_generator_left_open,
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


def trained(wrap: Make, share: Make) -> list[torch.Tensor]:
    """Steps on two loaders at once, as semi-supervised scripts do, with a validation in between."""
    rng.seed_everything(3)
    torch.set_default_dtype(torch.float64)
    try:
        net = wrap(nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        labelled = share(DataLoader(Numbers(11), 4, shuffle=True))
        others = iter(share(DataLoader(Numbers(50), 8, shuffle=True)))
        check = share(DataLoader(Numbers(5), 3))
        for _ in range(2):
            for x in labelled:
                more = next(others)
                out, hidden = net(x[:, None].double() / 11), net(more[:, None].double() / 50)
                optimizer.zero_grad()
                (out.square().mean() + hidden.std()).backward()
                optimizer.step()
                with torch.no_grad():
                    scores = [net(batch[:, None].double()) for batch in check]
        return [*(value.detach() for value in net.state_dict().values()), *scores]
    finally:
        torch.set_default_dtype(torch.float32)


def trained_on_ranks() -> list[torch.Tensor]:
    return trained(models.wrap_model, loaders.shard_loader)


@pytest.mark.parametrize("n", [2, 3])
def test_two_loaders_at_once_train_the_same(ranks: RankPool, n: int) -> None:
    expected = trained(lambda module: EmulatedDataParallel(module, n=n), lambda loader: loader)
    for result in ranks(n, trained_on_ranks):
        for got, wanted in zip(result, expected):
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-14)
