"""Data sets that keep something from one sample to the next."""

from __future__ import annotations

import functools
import io
import itertools
import random
import time
import warnings
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np
import pytest
import torch
from dp2ddp_runtime.batches import kept
from dp2ddp_runtime.batches import loader as loaders
from dp2ddp_runtime.ranks import rng
from rank_pool import RankPool
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler, Sampler, Subset
from training import Sized

_global = np.random.RandomState(5)


class Moving(Sized):
    """Sample `i` is `i`, with what comes next, and a number of the global generators."""

    def __init__(self, state: Any, draw: Callable[[Any], Any]) -> None:
        self.state = state
        self.draw = draw

    def __getitem__(self, index: int) -> Any:
        return index, float(self.draw(self.state)), random.random() + float(torch.rand(1))


class Compose:
    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps

    def __call__(self, state: Any) -> Any:
        for step in self.steps:
            state = step(state)
        return state


class Noise:
    def __init__(self) -> None:
        self.rng = np.random.RandomState(47)

    def __call__(self, value: float) -> float:
        return value + self.rng.rand()


class Counting(Sized):
    """Nothing but a number moves."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __getitem__(self, index: int) -> int:
        self.count += 1
        return index + 100 * self.count


def squares() -> Iterator[int]:
    for number in range(10**6):
        yield number**2


def from_global(_: Any) -> Any:
    return sum([_global.rand() for _ in range(2)])


def closed() -> Any:
    own = torch.Generator().manual_seed(3)
    return lambda _: torch.rand(1, generator=own)


class Pops(Sampler[int]):
    """Draws from the generator that the data set draws from, too."""

    def __init__(self, own: random.Random) -> None:
        self.own = own

    def __len__(self) -> int:
        return 11

    def __iter__(self) -> Iterator[int]:
        for _ in range(11):
            yield self.own.randrange(11)


def data_sets(both: random.Random) -> dict[str, Callable[[], Any]]:
    return {
        "RandomState": lambda: Moving(np.random.RandomState(47), lambda own: own.rand()),
        "default_rng": lambda: Moving(np.random.default_rng(47), lambda own: own.random()),
        "Random": lambda: Moving(random.Random(47), lambda own: own.random()),
        "Generator": lambda: Moving(torch.Generator().manual_seed(4), lambda own: torch.rand(1, generator=own)),
        "count": lambda: Moving(itertools.count(), next),
        "cycle": lambda: Moving(itertools.cycle(range(7)), next),
        "iterator": lambda: Moving(iter(range(1000)), next),
        "generator": lambda: Moving(squares(), next),
        "list": lambda: Moving(list(range(1000)), list.pop),
        "array": lambda: Moving(np.zeros(2), lambda state: np.add(state, 1, out=state)[0]),
        "nested": lambda: Moving(1.0, Compose([float, Noise()])),
        "method": lambda: Moving(0, functools.partial(lambda draw, _: draw(), np.random.RandomState(3).rand)),
        "closure": lambda: Moving(0, closed()),
        "global": lambda: Moving(0, from_global),
        "within": lambda: ConcatDataset([Subset(Moving(random.Random(1), random.Random.random), [3, 1, 4])] * 4),
        "counter": Counting,
        "sampler": lambda: Moving(both, lambda own: own.random()),
        "generator of the loader": lambda: Moving(np.random.RandomState(1), lambda own: own.rand()),
    }  # fmt: skip


KINDS = tuple(data_sets(random.Random()))


def make(kind: str, **options: Any) -> DataLoader[Any]:
    both, own = random.Random(8), torch.Generator().manual_seed(9)
    more: dict[str, Any] = {
        "sampler": {"sampler": Pops(both)},
        "generator of the loader": {"sampler": RandomSampler(range(11), True, 90, own), "generator": own},
        "counter": {"drop_last": True, "shuffle": True},
    }
    return DataLoader(data_sets(both)[kind](), 4, **{**more.get(kind, {"shuffle": True}), **options})


def read(kind: str, epochs: int = 2, **options: Any) -> Any:
    """The batches, a draw between them, and whether a warning says what it costs."""
    _global.seed(5)
    rng.seed_everything(7)
    found = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader = loaders.shard_loader(make(kind, **options))
        for epoch in range(epochs):
            loaders.set_epoch(loader, epoch)
            for batch in loader:
                values = batch if isinstance(batch, (list, tuple)) else [batch]
                found.append([[value.tolist() for value in values], random.random()])
    texts = [str(each.message) for each in told if "whole batches" in str(each.message)]
    return found, loader.num_workers, texts


def read_all(workers: int) -> Any:
    return [read(kind, num_workers=workers) for kind in KINDS]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_original_s_where_a_data_set_has_a_state_of_its_own(ranks: RankPool, workers: int) -> None:
    """Also its draws from the global generators, those of the workers included."""
    results = ranks(2, read_all, workers)
    for place, kind in enumerate(KINDS):
        expected = read(kind, num_workers=workers)
        for rank, result in enumerate(results):
            batches, count, told = result[place]
            assert batches == expected[0], kind
            assert count == expected[1] == workers
            assert len(told) == (rank == 0), kind


def names_told() -> list[str]:
    return ["".join(read(kind, 1, num_workers=1)[2]) for kind in NAMED]


NAMED = ("RandomState", "nested", "within", "counter")


def test_the_warning_names_the_class_and_the_attribute(ranks: RankPool) -> None:
    told = dict(zip(NAMED, ranks(2, names_told)[0]))
    assert told["RandomState"].startswith("Moving changes its 'state'")
    assert "'draw.steps[1].rng'" in told["nested"]
    assert "'datasets[0].dataset.state'" in told["within"]
    assert told["counter"].startswith("Counting changes its 'count'")
    assert "rank loads whole batches, with 1 workers on each" in told["counter"]


@pytest.mark.parametrize("options", [{"persistent_workers": True}, {"prefetch_factor": 5}])
def test_workers_that_last_or_read_far_ahead(ranks: RankPool, options: dict[str, Any]) -> None:
    for kind in ("RandomState", "generator of the loader"):
        arguments = {"num_workers": 2, **options}
        expected, _, _ = read(kind, 3, **arguments)
        for batches, _, _ in ranks(2, read, kind, 3, **arguments):
            assert batches == expected


class Caching(Sized):
    """Much changes in it that makes no difference to what it returns."""

    def __init__(self) -> None:
        self.images: dict[int, Any] = {}
        self.sizes = {"first": 1}
        self.seen: list[int] = []
        self.opened = False
        self.handle: Any = None
        self.table = torch.zeros(11, 3)

    @functools.cache  # noqa: B019
    def one(self, index: int) -> int:
        return index

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self.opened:
            self.opened, self.handle = True, open(__file__)  # noqa: SIM115
        self.handle.readline()
        self.seen.append(index)
        self.table[index] += 1
        self.sizes[str(index)] = index
        self.images[index] = torch.full((3,), self.one(index))
        return self.images[index]


class Seeded(Caching):
    """A generator that `worker_init_fn` seeds: another one in each worker, as the global ones are."""

    def __init__(self) -> None:
        super().__init__()
        self.own = np.random.RandomState(0)

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + 0 * self.own.rand()


def seed_own(worker_id: int) -> None:
    info: Any = torch.utils.data.get_worker_info()
    info.dataset.own.seed(info.seed % 2**32)


def caching(workers: int) -> list[Any]:
    originals = [DataLoader(Caching(), 4, num_workers=workers)]
    if workers:
        originals.append(DataLoader(Seeded(), 4, num_workers=workers, worker_init_fn=seed_own))
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for loader in map(loaders.shard_loader, originals):
            found.append([[len(batch.rows) for batch in loader] for _ in range(2)])
            assert loader.num_workers == workers // 2
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_caches_and_generators_of_each_rank_s_own_do_not_count(ranks: RankPool, workers: int) -> None:
    first, second = ranks(2, caching, workers)
    later = [[2, 2, 2], [2, 2, 1]]
    for result in first, second:
        assert len(result) == 1 + (workers == 2)
        for epochs in result:
            assert epochs == 2 * [later[result is second]]


class Logged(Sized):
    """Writes which samples are loaded into a file, which is nothing that a data set keeps."""

    def __init__(self, collected: Any = None) -> None:
        self.log = io.StringIO()
        self.collected = collected

    def __getitem__(self, index: int) -> int:
        self.log.write(f"{index} ")
        if isinstance(self.collected, dict):
            self.collected[str(index)] = index
        elif self.collected is not None:
            self.collected.append(index)
        return index


def loaded(collected: Any = None) -> list[list[int]]:
    """What a rank loads for each batch of two passes."""
    data, found = Logged(collected), []
    loader = loaders.shard_loader(DataLoader(data, 4))
    for _ in range(2):
        for _ in loader:
            found.append([int(index) for index in data.log.getvalue().split()])
            data.log.truncate(data.log.seek(0))
    return found


def test_without_workers_a_rank_loads_its_rows_from_the_second_batch_on(ranks: RankPool) -> None:
    first, second = ranks(2, loaded)
    assert first == [[0, 1, 2, 3], [4, 5], [8, 9], [0, 1], [4, 5], [8, 9]]
    assert second == [[0, 1, 2, 3], [6, 7], [10], [2, 3], [6, 7], [10]]


@pytest.mark.parametrize("collected", [[], {}])
def test_without_workers_every_rank_loads_all_that_a_data_set_collects(ranks: RankPool, collected: Any) -> None:
    for result in ranks(2, loaded, collected):
        assert result == 2 * [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


class Late(Sized):
    """From the second batch on it counts."""

    size = 12

    def __init__(self) -> None:
        self.count = 0

    def __getitem__(self, index: int) -> int:
        self.count += index > 3
        return index


def late(workers: int) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        list(loaders.shard_loader(DataLoader(Late(), 4, num_workers=workers)))
    return [str(each.message) for each in told if "'count'" in str(each.message)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_change_that_comes_late_is_told(ranks: RankPool, workers: int) -> None:
    for told in ranks(2, late, workers):
        assert len(told) == 1
        assert "changed its 'count' for the first time after the first batch" in told[0]
        assert "With a collate_fn of your own" in told[0]


def test_looking_is_cheap() -> None:
    data = ConcatDataset([Subset(Moving(np.random.RandomState(1), Compose([Noise()] * 5)), list(range(10**5)))] * 20)
    samples = [(f"{index}.png", index % 7) for index in range(10**6)]
    data.samples = samples  # type: ignore[attr-defined]
    start = time.process_time()
    for _ in range(10):
        kept.state(data)
    assert (time.process_time() - start) / 10 < 0.02
