"""Loaders for ranks: what they yield, when every rank loads whole batches, and what they leave as it is."""

from __future__ import annotations

import logging
import random
import sys
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from dp2ddp_runtime.base import world
from dp2ddp_runtime.batches import loader as loaders
from dp2ddp_runtime.ranks import collectives, rng
from dp2ddp_runtime.ranks.exchange import Divergence
from rank_pool import RankPool
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    get_worker_info,
)

Sample = namedtuple("Sample", "image label")


class Kinds(Dataset[Any]):
    """Samples with everything that the default collate function takes."""

    def __len__(self) -> int:
        return 11

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


def described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [described(item) for item in value]
    return value


def whole_batches(size: int) -> list[Any]:
    return [described(batch) for batch in loaders.shard_loader(DataLoader(Kinds(), size))]


@pytest.mark.parametrize(("n", "size"), [(2, 4), (3, 5), (2, 1), (3, 11)])
def test_whole_batches_are_what_the_original_yields(ranks: RankPool, n: int, size: int) -> None:
    expected = [described(batch) for batch in DataLoader(Kinds(), size)]
    for batches in ranks(n, whole_batches, size):
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


def longest(batch: list[Any]) -> Any:
    return len(batch), batch


def loaded_by_everybody() -> list[Any]:
    rng.seed_everything(2)
    numbers = TensorDataset(torch.arange(9))
    kinds: dict[str, Any] = {
        "stream": DataLoader(Stream(), 2),
        "stream with workers": DataLoader(Stream(), 2, num_workers=2),
        "no batches": DataLoader(numbers, batch_size=None, shuffle=True),
        "collate": DataLoader(numbers, 4, shuffle=True, collate_fn=longest),
        "own iterator": Cycle(numbers, 4, shuffle=True),
        "list": [(torch.ones(3), torch.zeros(3)), (torch.ones(2), torch.zeros(2))],
    }
    result = []
    for name, original in kinds.items():
        loader = loaders.shard_loader(original)
        batches = [described(batch) for batch in loader]
        workers = getattr(loader, "num_workers", 0)
        result.append((name, workers, batches, torch.rand(1).item()))
    return result


def test_what_can_not_be_split_is_loaded_whole_by_every_rank(ranks: RankPool) -> None:
    expected = loaded_by_everybody()
    for result in ranks(3, loaded_by_everybody):
        assert result == expected


def kept() -> dict[str, Any]:
    numbers = TensorDataset(torch.arange(10))
    original = DataLoader(numbers, 4, shuffle=True, num_workers=3, drop_last=True, prefetch_factor=3, timeout=9)
    original.mine = "attribute"  # type: ignore[attr-defined]
    loader = loaders.shard_loader(original)
    assert isinstance(loader, DataLoader)
    assert type(loader).__name__ == "DataLoader"
    assert loaders.shard_loader(loader) is loader
    assert loader.dataset is numbers
    assert loader.sampler is original.sampler
    assert loader.batch_sampler.batch_size == 4
    assert type(original.batch_sampler) is BatchSampler
    assert original.num_workers == 3
    with pytest.raises(ValueError, match="should not be set"):
        loader.batch_size = 3
    with pytest.raises(TypeError, match="int"):
        loaders.shard_loader(3)
    names = ("batch_size", "num_workers", "drop_last", "prefetch_factor", "timeout", "mine")
    return {name: getattr(loader, name) for name in names}


def test_everything_else_of_a_loader_stays(ranks: RankPool) -> None:
    expected: dict[str, Any] = {
        "batch_size": 4,
        "num_workers": 2,
        "drop_last": True,
        "prefetch_factor": 3,
        "timeout": 9,
    }
    expected["mine"] = "attribute"
    assert ranks(2, kept) == [expected] * 2


def sharded_again() -> list[bool]:
    kinds: list[Any] = [DataLoader(TensorDataset(torch.arange(8)), 4), DataLoader(Kinds(), 4, collate_fn=longest)]
    iterable = loaders.shard_loader([[1, 2], [3]])
    again = [loaders.shard_loader(each) is loaders.shard_loader(each) for each in kinds]
    return [*again, loaders.shard_loader(iterable) is iterable]


def test_a_loader_that_is_sharded_in_every_epoch_is_one(ranks: RankPool) -> None:
    assert ranks(2, sharded_again) == [[True] * 3] * 2


def test_with_one_rank_a_loader_is_itself() -> None:
    original = DataLoader(TensorDataset(torch.arange(3)))
    assert loaders.shard_loader(original) is original
    state = torch.get_rng_state()
    loaders.set_epoch(original, 3)
    assert torch.equal(torch.get_rng_state(), state)


def why_whole() -> list[str]:
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("dp2ddp_runtime")
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        numbers = TensorDataset(torch.arange(9))
        for original in (DataLoader(numbers, 4), DataLoader(numbers, 4, collate_fn=longest), DataLoader(numbers, 5)):
            loaders.shard_loader(original)
    finally:
        log.removeHandler(handler)
    return messages


def test_whole_batches_that_were_not_asked_for_are_told(ranks: RankPool) -> None:
    expected = "DataLoader loads whole batches on every rank: it has a collate_fn of its own"
    assert ranks(2, why_whole) == [[expected]] * 2


class Told(Dataset[int]):
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> float:
        return random.random() + float(torch.rand(1)) + float(np.random.rand())


class ToldSampler(RandomSampler):
    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


def epochs_told() -> Any:
    rng.seed_everything(5)
    data = Told()
    sampler = ToldSampler(data)
    plain = DataLoader(data, 2, sampler=sampler)
    loader = loaders.shard_loader(plain)
    drawn = []
    for epoch in (0, 1, 1):
        loaders.set_epoch(loader, epoch)
        drawn.append([value for batch in loader for value in batch.tolist()])
        # As if only the rare sample drew a number: the first batch didn't.
        loader.batch_sampler.splits = True
    custom = loaders.shard_loader(DataLoader(data, batch_sampler=ToldBatches(data)))
    loaders.set_epoch(custom, 7)
    return data.epochs, sampler.epochs, drawn, custom.batch_sampler.epochs


class ToldBatches(ToldSampler):
    def __iter__(self) -> Iterator[Any]:
        return iter([[0, 1], [2, 3]])


def test_set_epoch_tells_all_parts_and_restarts_the_augmentation(ranks: RankPool) -> None:
    for data, sampler, drawn, batches in ranks(2, epochs_told):
        assert data == [0, 1, 1, 7]
        assert sampler == [0, 1, 1]
        assert batches == [7]
        assert drawn[1] == drawn[2] != drawn[0]


class Seeds(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        place = [info.id, info.num_workers]
        return info.seed, torch.initial_seed(), random.random(), float(np.random.rand()), marker["worker"], place


marker = {"worker": -1}


def mark(worker_id: int) -> None:
    marker["worker"] = worker_id + int(torch.initial_seed() == get_worker_info().seed) * 10  # type: ignore[union-attr]


def worker_seeds(everybody: bool, persistent: bool) -> Any:
    rng.seed_everything(5)
    collate = longest if everybody else None
    original = DataLoader(
        Seeds(), 4, num_workers=2, worker_init_fn=mark, collate_fn=collate, persistent_workers=persistent
    )
    loader = loaders.shard_loader(original)
    return [[described(batch) for batch in loader] for _ in range(2)]


def test_workers_of_ranks_have_seeds_of_their_own_unless_all_load_all(ranks: RankPool) -> None:
    first, second = ranks(2, worker_seeds, False, True)
    assert first == second
    for batch in (*first[0], *first[1]):
        (_, (seeds, initial, drawn, numbers, marks, (_, (ids, counts)))) = batch
        assert seeds == initial
        assert marks[1] == [10, 10, 11, 11], "the script's worker_init_fn ran, after the seeding"
        assert (ids[1], counts[1]) == ([0, 0, 1, 1], [2] * 4), "no two workers are the same one"
        for column in (seeds, drawn, numbers):
            assert not set(column[1][:2]) & set(column[1][2:]), "rows of another rank"
        assert len(set(drawn[1])) == len(set(numbers[1])) == 4
    assert first[0] != first[1]
    first, second = ranks(2, worker_seeds, True, False)
    assert first == second == worker_seeds(True, False)


def waits_before_forking() -> list[int]:
    """How often three passes of a loader wait for gloo's threads: without workers, with them, with lasting ones."""
    waits: list[None] = []
    let_go, collectives.let_threads_go = collectives.let_threads_go, lambda: waits.append(None)
    found = []
    try:
        for options in ({}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}):
            loader, before = loaders.shard_loader(DataLoader(Kinds(), 6, **options)), len(waits)
            assert [len(list(loader)) for _ in range(3)] == [2, 2, 2]
            found.append(len(waits) - before)
    finally:
        collectives.let_threads_go = let_go
    return found


@pytest.mark.skipif(sys.version_info >= (3, 11, 10), reason="CPython is mended there")
def test_workers_are_forked_while_no_thread_of_gloo_s_runs(ranks: RankPool) -> None:
    assert ranks(2, waits_before_forking) == [[0, 3, 1]] * 2


class Unshared(Dataset[Any]):
    """Draws from the shared stream, and from a generator that no rank shares."""

    def __init__(self) -> None:
        self.own = random.Random()

    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        return index, self.own.random(), float(torch.rand(1)), f"{self.own.random()}"


def unshared() -> list[Any]:
    torch.manual_seed(1)
    loader = loaders.shard_loader(DataLoader(Unshared(), 4, shuffle=True))
    return [described(batch) for _ in range(4) for batch in loader]


def test_whole_batches_are_one_even_with_random_numbers_that_no_rank_shares(ranks: RankPool) -> None:
    for n in (2, 3):
        batches, *others = ranks(n, unshared)
        assert all(other == batches for other in others)
        assert len(batches) == 8, "in the loader's trial, and after it"


class Growing(Dataset[Any]):
    """Samples have the size that the first one of their batch chose, as in multi-scale training."""

    def __init__(self) -> None:
        self.size = 8

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 4 == 0:
            self.size += 300
        return torch.ones(3, self.size, self.size)  # too large to be gathered unasked


class Uneven(Growing):
    """Of another size on each rank."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(3, 8 + world.rank(), 8)


def shapes() -> list[Any]:
    found: list[Any] = [tuple(batch.shape) for batch in loaders.shard_loader(DataLoader(Growing(), 4, num_workers=1))]
    try:
        next(iter(loaders.shard_loader(DataLoader(Uneven(), 4, num_workers=1))))
    except Divergence as error:
        found.append(str(error))
    return found


def test_samples_have_the_shape_of_the_batch_s_first_one_or_it_is_an_error(ranks: RankPool) -> None:
    """Although nobody looks at them."""
    for *found, text in ranks(2, shapes):
        assert found == [(4, 3, size, size) for size in (308, 608, 908)]
        assert "([3, 8, 8], [3, 9, 8])" in text
        assert "With a collate_fn of your own" in text


def by_a_server() -> list[list[float]]:
    """Workers that aren't children of their rank."""
    data = TensorDataset(torch.arange(8.0))
    loader = loaders.shard_loader(DataLoader(data, 4, num_workers=1, multiprocessing_context="forkserver"))
    return [batch.tolist() for (batch,) in loader]


def test_workers_of_a_fork_server_live_as_long_as_they_are_needed(ranks: RankPool) -> None:
    assert ranks(2, by_a_server) == [[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]] * 2
