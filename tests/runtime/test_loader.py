"""Loaders for ranks: what they yield, when every rank loads whole batches, and what they leave as it is."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import random
import weakref
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from dp2ddp_runtime.base import world
from dp2ddp_runtime.batches import loader as loaders
from dp2ddp_runtime.ranks import rng
from dp2ddp_runtime.ranks.exchange import Divergence
from rank_pool import RankPool, on_ranks
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    get_worker_info,
)
from training import Sized, described, longest

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
    logging.getLogger().setLevel(logging.DEBUG)  # the script's, which may have a file
    try:
        loaders.shard_loader(DataLoader(TensorDataset(torch.arange(9)), 4, collate_fn=longest))
        log.setLevel(logging.DEBUG)
        numbers = TensorDataset(torch.arange(9))
        for original in (DataLoader(numbers, 4), DataLoader(numbers, 4, collate_fn=longest), DataLoader(numbers, 5)):
            loaders.shard_loader(original)
    finally:
        log.removeHandler(handler)
        logging.getLogger().setLevel(logging.WARNING)
    return messages


def test_whole_batches_that_were_not_asked_for_are_told(ranks: RankPool) -> None:
    expected = "DataLoader loads whole batches on every rank: it has a collate_fn of its own"
    assert ranks(2, why_whole) == [[expected]] * 2


class Told(Sized):
    size = 4

    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

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


class Unshared(Sized):
    """Draws from the shared stream, and from a generator that no rank shares."""

    size = 7

    def __init__(self) -> None:
        self.own = random.Random()

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


class Growing(Sized):
    """Samples have the size that the first one of their batch chose, as in multi-scale training."""

    size = 12

    def __init__(self) -> None:
        self.side = 8

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 4 == 0:
            self.side += 300
        return torch.ones(3, self.side, self.side)  # too large to be gathered unasked


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


class Drawing(Sized):
    """Of a size that a worker draws."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((3, torch.randint(2, 99, ()), 2), float(index)), torch.empty(0, world.rank())


def single_rows() -> list[Any]:
    """Of batches with a row for one rank; another one has loaded it as well, to go the same way, and drawn anew."""
    loader = loaders.shard_loader(DataLoader(Drawing(), 1, num_workers=1))
    return [(x.shape, x.rows.shape, empty.shape, x.unique().tolist()) for x, empty in loader]


def test_what_stands_in_on_a_rank_without_rows_has_the_size_of_the_others(ranks: RankPool) -> None:
    one, other = ranks(2, single_rows)
    assert one == other
    assert [values for *_, values in one] == [[index] for index in range(11)]
    assert len({rows for _, rows, *_ in one}) > 1


class Collating(DataLoader[Any]):
    """It leads to itself."""

    def __init__(self, size: int) -> None:
        super().__init__(TensorDataset(torch.arange(9.0)), size, collate_fn=self.collate)

    def collate(self, samples: list[Any]) -> torch.Tensor:
        return torch.stack([sample for (sample,) in samples])


def saved_and_copied() -> tuple[int, list[str]]:
    """How many loaders come of one that is sharded several times, and what a sharded one says to copies."""
    original = DataLoader(range(9), 4, shuffle=True, num_workers=3)
    sharded: Any = loaders.shard_loader(original)
    count = len({loaders.shard_loader(each) for each in (original, original, sharded, copy.copy(original))})
    assert not hasattr(copy.deepcopy(original)._sharded, "loader")
    plain = loaders.shard_loader([[1, 2], [3]])
    assert loaders.shard_loader(plain) is plain
    said = []
    for function in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError) as error:
            function(sharded)
        said.append(str(error.value))
    return count, said


def test_a_sharded_loader_is_not_copied(ranks: RankPool) -> None:
    for count, said in ranks(2, saved_and_copied):
        assert count == 2, "a copy of the original's is another one"
        assert all("can't be pickled or copied: do that with the loader itself" in each for each in said)


@on_ranks(2, each=False)
def test_a_loader_that_leads_to_itself_is_not_kept() -> bool:
    before = weakref.ref(loaders.shard_loader(Collating(4)))
    gc.collect()
    return before() is not None
