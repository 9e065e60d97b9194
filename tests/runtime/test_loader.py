"""Loaders for ranks: what they yield, when every rank loads whole batches, and what they leave as it is."""

from __future__ import annotations

import copy
import pickle
import random
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import dp2ddp_runtime as ddp
import numpy as np
import pytest
import torch
from dp2ddp_runtime.world import Divergence, agree, exchange, world
from loading import Noted, Sized, described, is_rows, longest
from rank_pool import RankError, RankPool, on_ranks
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset, get_worker_info

Sample = namedtuple("Sample", "image label")


class Kinds(Sized):
    """Samples with everything that the default collate function takes."""

    def __getitem__(self, index: int) -> Any:
        return {
            "tensor": torch.full((2, 1), float(index)),
            "array": np.full(3, index, dtype=np.int16),
            "number": index,
            "scalar": np.float32(index),
            "text": f"name {index}",
            "pair": Sample(index / 2, (f"a{index}", [index > 3, b"x" * index])),
            "flag": torch.tensor(index % 2 == 0),
        }


def whole_batches(size: int, workers: int) -> list[Any]:
    return [described(batch) for batch in ddp.shard_loader(DataLoader(Kinds(), size, num_workers=workers))]


@pytest.mark.parametrize(("n", "size", "workers"), [(3, 5, 0), (2, 1, 1)])
def test_whole_batches_are_what_the_original_yields(ranks: RankPool, n: int, size: int, workers: int) -> None:
    expected = [described(batch) for batch in DataLoader(Kinds(), size)]
    for batches in ranks(n, whole_batches, size, workers):
        assert batches == expected


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        yield from (
            (index, random.random()) for index in range(info.id if info else 0, 7, info.num_workers if info else 1)
        )


class Cycle(DataLoader[Any]):
    """A loader with an iterator of its own, as some libraries have."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield [2 * value for value in batch]


def loaded_by_everybody() -> list[Any]:
    ddp.seed_everything(2)
    numbers = TensorDataset(torch.arange(9))
    kinds: dict[str, Any] = {
        "stream": DataLoader(Stream(), 2),
        "stream with workers": DataLoader(Stream(), 2, num_workers=2),
        "no batches": DataLoader(numbers, batch_size=None, shuffle=True),
        "collate": DataLoader(numbers, 4, shuffle=True, collate_fn=longest),
        "collate with workers": DataLoader(numbers, 4, shuffle=True, collate_fn=longest, num_workers=1),
        "own iterator": Cycle(numbers, 4, shuffle=True),
        "list": [(torch.ones(3), torch.zeros(3)), (torch.ones(2), torch.zeros(2))],
    }
    result = []
    for name, original in kinds.items():
        loader = ddp.shard_loader(original)
        batches = list(loader)
        assert not any(map(is_rows, batches))
        result.append((name, [described(batch) for batch in batches], torch.rand(1).item()))
    return result


def test_what_can_not_be_split_is_loaded_whole_by_every_rank(ranks: RankPool) -> None:
    expected = loaded_by_everybody()
    for result in ranks(3, loaded_by_everybody):
        assert result == expected


class Named(DataLoader[Any]):
    """A loader of a library's, which adds attributes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.classes = ["a", "b"]


@on_ranks(1, 2, each=True)
def test_it_stays_the_loader_that_it_was() -> bool:
    numbers = TensorDataset(torch.arange(10))
    original = Named(numbers, 4, shuffle=True, num_workers=3, drop_last=True, prefetch_factor=3, timeout=9)
    loader: Any = ddp.shard_loader(original)
    assert loader is original
    assert ddp.shard_loader(loader) is loader
    assert isinstance(loader, Named)
    assert type(loader).__name__ == "Named"
    for _ in range(2):
        assert (loader.batch_size, loader.num_workers, loader.drop_last, loader.classes) == (4, 3, True, ["a", "b"])
        assert (loader.prefetch_factor, loader.timeout, len(loader), loader.worker_init_fn) == (3, 9, 2, None)
        assert type(loader.batch_sampler) is BatchSampler
        assert type(loader.sampler) is RandomSampler
        assert loader.dataset is numbers
        assert len(list(loader)) == len(iter(loader)) == 2
    with pytest.raises(ValueError, match="should not be set"):
        loader.batch_size = 3
    loader.num_workers = 0
    with pytest.raises(TypeError, match="int"):
        ddp.shard_loader(3)
    return True


@on_ranks(1, 2, each=True)
def test_copies_are_sharded_too() -> bool:
    loader: Any = ddp.shard_loader(Named(TensorDataset(torch.arange(8.0)), 4, num_workers=1, persistent_workers=True))
    for _ in range(2):
        for each in (loader, copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
            assert isinstance(each, Named)
            batches = list(each)
            assert all(map(is_rows, batches)) == (world.size > 1)
            assert [batch.tolist() for (batch,) in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    return True


def loaded_alone() -> Any:
    """Before the first wrap the ranks don't know each other; then they do."""
    groups, world.groups = world.groups, None
    torch.manual_seed(5)
    loaders: list[Any] = [
        ddp.shard_loader(DataLoader(Noted(), 4, shuffle=True, **options))
        for options in ({}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True})
    ]
    found, kinds = [], []
    for loader in loaders:
        begun = iter(loader)
        batches = [next(begun)]
        world.groups = groups
        batches += [*begun, *loader, *loader]
        world.groups = None
        kinds.append([is_rows(batch) for batch in batches])
        found.append([batch.tolist() for batch in batches if world.size == 1 or not is_rows(batch)])
        world.groups = groups
        found[-1] = [batch.tolist() for batch in batches]
        world.groups = None
    world.groups = groups
    return found, kinds, torch.rand(1).item()


def test_a_pass_that_began_before_the_first_wrap_goes_on(ranks: RankPool) -> None:
    expected, _, number = loaded_alone()
    for found, kinds, last in ranks(2, loaded_alone):
        assert found == expected
        assert last == number
        assert kinds == [[False] * 3 + [True] * 6] * 3


# What the ranks compare.


class Uneven(Sized):
    """Samples of another size on each rank, too large to be gathered unasked."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(3, 200 + world.rank, 100)


def uneven(workers: int) -> str:
    try:
        for _ in ddp.shard_loader(DataLoader(Uneven(), 4, num_workers=workers)):
            agree("nothing", None)
            exchange("a step")
    except Divergence as error:
        world.agreed.clear()
        return str(error)
    return ""


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_other_shapes_on_other_ranks_are_an_error(ranks: RankPool, workers: int) -> None:
    for text in ranks(2, uneven, workers):
        assert "what a batch of a DataLoader is, but for its rows, at test_loader.py:" in text
        told = "rank 0: [['torch.float32', 3, 200, 100]]; rank 1: [['torch.float32', 3, 201, 100]]. Let its samples"
        assert told in text


# Who loads what.


class Rare(Noted):
    """Few samples draw random numbers: the first batch tells nothing."""

    def __getitem__(self, index: int) -> Any:
        noise = random.random() + np.random.randn() + torch.rand(()) if index > 4 else 0
        return super().__getitem__(index) + noise


def rare() -> Any:
    ddp.seed_everything(3)
    data = Rare()
    loader = ddp.shard_loader(DataLoader(data, 4))
    found = [[round(batch.tolist()[0], 6), batch.tolist(), np.random.randn()] for _ in range(2) for batch in loader]
    return found, torch.rand(1).item(), data.loaded


def test_where_samples_draw_every_rank_loads_all_of_them_as_the_original_does(ranks: RankPool) -> None:
    expected, last, _ = rare()
    everything = [4, 5, 6, 7, 8, 9, 10, *range(11)]
    for rank, (found, number, loaded) in enumerate(ranks(2, rare)):
        assert found == expected
        assert number == last
        assert loaded == [*([0, 1], [2, 3])[rank], *([4, 5], [6, 7])[rank], *everything]


class Late(Noted):
    """Draws nothing in what the ranks look at together."""

    size = 100

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + (torch.rand(()) if index in (76, 79) else 0)


@on_ranks(2, each=[19, "the samples of a DataLoader draw random numbers at test_loader.py:"])
def test_samples_that_begin_to_draw_late_are_an_error() -> Any:
    count = 0
    try:
        for _ in ddp.shard_loader(DataLoader(Late(), 4)):
            count += 1
    except RuntimeError as error:
        return [count, str(error)[: str(error).index(":") + 1]]
    return None


class Nested(Sized):
    """Reads a sharded loader for each of its samples."""

    def __init__(self) -> None:
        self.inner = ddp.shard_loader(DataLoader(Noted(), 3))

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.cat([*self.inner]) + index


@on_ranks(1, 2, each=True)
def test_in_samples_it_is_the_originals() -> bool:
    for workers in (0, 1):
        data = Nested()
        (batch,) = ddp.shard_loader(DataLoader(data, 11, num_workers=workers))
        assert batch.tolist() == [[float(i + j) for j in range(11)] for i in range(11)]
    return True


class Gaps(Sized):
    """Some of its samples raise."""

    size = 18

    def __getitem__(self, index: int) -> int:
        if index in (4, 13):
            raise FileNotFoundError(f"no sample {index}")
        return index


def over_gaps(workers: int, whole: bool) -> list[Any]:
    """What a script gets that goes on with the next batch, and uses each."""
    found: list[Any] = []
    batches = iter(ddp.shard_loader(DataLoader(Gaps(), 3, num_workers=workers, collate_fn=longest if whole else None)))
    while True:
        try:
            batch = next(batches)
        except FileNotFoundError as error:
            found.append(str(error).strip().splitlines()[-1].removeprefix("FileNotFoundError: "))
        except StopIteration:
            return found
        else:
            found.append(batch[1] if whole else batch.tolist())
        exchange("a step")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sample_that_can_t_be_loaded_raises_on_all_ranks_or_ends_the_job(ranks: RankPool, workers: int) -> None:
    """Where all load whole batches, all go on with the next one; else the others don't go on without it."""
    assert ranks(2, over_gaps, workers, True) == [over_gaps(workers, True)] * 2
    with pytest.raises(RankError) as error:
        ranks(2, over_gaps, workers, False)
    for text in error.value.failures.values():
        *_, last = text.strip().splitlines()
        assert last.startswith("dp2ddp_runtime.world.Divergence: ")
        assert ("no sample 4" in last) == (workers == 1) or "come apart" in last


class Told(BatchSampler):
    """A sampler that is told of epochs."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@on_ranks(1, 2, each=7)
def test_set_epoch_tells_the_sampler_and_draws_nothing() -> int:
    sampler = Told(range(8), 4, False)
    loader = ddp.shard_loader(DataLoader(Noted(), batch_sampler=sampler))
    state = torch.get_rng_state()
    ddp.set_epoch(loader, 7)
    assert torch.equal(torch.get_rng_state(), state)
    return sampler.epoch
