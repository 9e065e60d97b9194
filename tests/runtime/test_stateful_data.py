"""Data sets that keep something from one sample to the next, fail to load one, or are not the same on all ranks."""

from __future__ import annotations

import functools
import gc
import io
import itertools
import random
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np
import pytest
import torch
from dp2ddp_runtime import operations
from dp2ddp_runtime.base import world
from dp2ddp_runtime.batches import contents, kept
from dp2ddp_runtime.batches import loader as loaders
from dp2ddp_runtime.ranks import exchange, rng
from dp2ddp_runtime.ranks.exchange import Divergence
from rank_pool import RankPool
from torch.utils.data import ConcatDataset, DataLoader, Dataset, RandomSampler, Sampler, Subset, TensorDataset

_global = np.random.RandomState(5)


class Moving(Dataset[Any]):
    """Sample `i` is `i`, with what comes next, and a number of the global generators."""

    def __init__(self, state: Any, draw: Callable[[Any], Any]) -> None:
        self.state = state
        self.draw = draw

    def __len__(self) -> int:
        return 11

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


class Counting(Dataset[Any]):
    """Nothing but a number moves."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __len__(self) -> int:
        return 11

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


def make(kind: str, **options: Any) -> DataLoader[Any]:
    both = random.Random(8)
    own: Any = torch.Generator().manual_seed(9)
    data: dict[str, Callable[[], Any]] = {
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
    more: dict[str, Any] = {
        "sampler": {"sampler": Pops(both)},
        "generator of the loader": {"sampler": RandomSampler(range(11), True, 90, own), "generator": own},
        "counter": {"drop_last": True, "shuffle": True},
    }
    return DataLoader(data[kind](), 4, **{**more.get(kind, {"shuffle": True}), **options})


KINDS = (
    "RandomState", "default_rng", "Random", "Generator", "count", "cycle", "iterator", "generator", "list", "array",
    "nested", "method", "closure", "global", "within", "counter", "sampler", "generator of the loader",
)  # fmt: skip


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


class Caching(Dataset[Any]):
    """Much changes in it that makes no difference to what it returns."""

    def __init__(self) -> None:
        self.images: dict[int, Any] = {}
        self.sizes = {"first": 1}
        self.seen: list[int] = []
        self.opened = False
        self.handle: Any = None
        self.table = torch.zeros(11, 3)

    def __len__(self) -> int:
        return 11

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


class Logged(Dataset[int]):
    """Writes which samples are loaded into a file, which is nothing that a data set keeps."""

    def __init__(self, collected: Any = None) -> None:
        self.log = io.StringIO()
        self.collected = collected

    def __len__(self) -> int:
        return 11

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


class Late(Dataset[int]):
    """From the second batch on it counts."""

    def __init__(self) -> None:
        self.count = 0

    def __len__(self) -> int:
        return 12

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


class OwnError(Exception):
    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"{code} at {where}")
        self.code = code


def raised(index: int) -> Exception:
    return {
        1: FileNotFoundError(2, "no such file", "a.png"),
        5: OwnError(7, "there"),
        8: KeyError("k"),
        9: LookupError("within"),
        15: StopIteration("end"),
    }[index]


class Gaps(Dataset[Any]):
    """Some of its samples raise; those of them that torch can send from a worker."""

    def __init__(self, text: bool = False, bad: tuple[int, ...] = (1, 5, 8, 9, 15)) -> None:
        self.text, self.bad = text, bad

    def __len__(self) -> int:
        return 18

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise raised(index)
        return (index, f"text {index}") if self.text else index


def over_gaps(workers: int, text: bool) -> list[Any]:
    """What a script gets that goes on with the next batch, and uses each."""
    found: list[Any] = []
    data = Gaps(text, (1, 8, 15)) if workers else Gaps(text)
    batches = iter(loaders.shard_loader(DataLoader(data, 3, num_workers=workers)))
    for _ in range(6):
        try:
            batch = next(batches)
        except Exception as error:  # noqa: BLE001
            # What isn't one of Python's own is told as the nearest of these, and its name.
            kind = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
            line = str(error).replace("\\n", "\n").replace("\\", "").replace("'", "").strip().splitlines()[-1]
            found.append((kind, line.removeprefix("OwnError: "), getattr(error, "errno", 0)))
        else:
            found.append((batch[0].tolist(), list(batch[1])) if text else batch.tolist())
    return found


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("text", [False, True])
def test_all_ranks_fail_to_load_a_batch_and_go_on_with_the_next(ranks: RankPool, workers: int, text: bool) -> None:
    expected = over_gaps(workers, text)
    for n in (2, 3):
        results = ranks(n, over_gaps, workers, text)
        for result in results:
            assert result == expected


class Once(TensorDataset):
    """A sample that one rank alone can't load, and only once: a file system that hiccups."""

    def __getitem__(self, index: int) -> Any:
        if index == 0 and world.rank() == 0 and not hasattr(self, "failed"):
            self.failed = "yes"
            raise OSError("hiccup")
        return super().__getitem__(index)


def cause_and_leftovers() -> tuple[str, bool]:
    loader = loaders.shard_loader(DataLoader(Once(torch.arange(8.0)), 4))
    batches = iter(loader)
    inner = weakref.ref(batches)
    text = ""
    gc.disable()
    try:
        with pytest.raises(OSError, match="hiccup") as caught:
            next(batches)
        text = str(caught.value.__cause__)
        del caught
        assert next(batches)[0].tolist() == [4, 5, 6, 7]
        del batches
        return text, inner() is None
    finally:
        gc.enable()


def test_another_rank_s_exception_comes_with_its_traceback_and_keeps_nothing_alive(ranks: RankPool) -> None:
    first, second = ranks(2, cause_and_leftovers)
    assert first == ("None", True)
    assert second[0].startswith("it was raised on rank 0:\nTraceback")
    assert 'raise OSError("hiccup")' in second[0]
    assert second[1]


def in_a_thread() -> list[Any]:
    """A thread reads ahead: the main thread exchanges meanwhile, at other times on each rank."""
    found: list[Any] = []

    def read() -> None:
        for batch in loader:
            time.sleep(0.01 * world.rank())
            found.append(batch)

    loader = iter(loaders.shard_loader(DataLoader(TensorDataset(torch.arange(40.0)), 4)))
    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(20):
        time.sleep(0.01 * (1 - world.rank()))
        operations.broadcast(1)
    thread.join()
    return [batch[0].tolist() for batch in found]


def test_a_thread_that_reads_ahead_meets_nobody(ranks: RankPool) -> None:
    expected = [batch[0].tolist() for batch in DataLoader(TensorDataset(torch.arange(40.0)), 4)]
    assert ranks(2, in_a_thread) == [expected] * 2


def failing_in_a_thread() -> str:
    batches = iter(loaders.shard_loader(DataLoader(Gaps(), 3)))
    caught: list[Exception] = []

    def read() -> None:
        try:
            for _ in range(3):
                next(batches)
        except FileNotFoundError as error:
            caught.append(error)

    batches._loader._decide("")  # as after a first batch
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    with pytest.raises(Divergence) as told:
        operations.broadcast(len(caught))
    exchange.piggybacked.clear()
    return str(told.value)


def test_a_failure_in_a_thread_is_an_error(ranks: RankPool) -> None:
    for text in ranks(2, failing_in_a_thread):
        assert text.startswith("rank 0 could not load a batch of a DataLoader in a thread")


class Learns(Sampler[Any]):
    """What it yields tells how many batches the script had been through when it was asked."""

    def __init__(self, as_batches: bool, length: int) -> None:
        self.as_batches, self.length = as_batches, length
        self.steps = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.length):
            yield [1000 * self.steps + 10 * number + i for i in range(3)] if self.as_batches else self.steps


class Many(Dataset[int]):
    """With `moves` it keeps something from one sample to the next."""

    def __init__(self, moves: bool) -> None:
        self.moves, self.count = moves, 0

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> int:
        self.count += self.moves
        return index + 10**7 * self.count


def learned(moves: bool, **options: Any) -> list[Any]:
    """Three passes; the first ends early."""
    found: list[Any] = []
    for as_batches in (True, False):
        sampler = Learns(as_batches, 11 if as_batches else 32)
        how = {"batch_sampler": sampler} if as_batches else {"sampler": sampler, "batch_size": 3}
        loader = loaders.shard_loader(DataLoader(Many(moves), **how, **options))  # type: ignore[arg-type]
        for stop in (4, 0, 0):
            for number, batch in enumerate(loader, start=1):
                found.append(batch.tolist())
                sampler.steps += 1
                if number == stop:
                    break
    return found


@pytest.mark.parametrize(
    ("n", "moves", "options"),
    [
        (2, False, {"num_workers": 3, "prefetch_factor": 3, "persistent_workers": True}),
        (3, False, {"num_workers": 8}),  # the original draws all of them at once
        (2, True, {"num_workers": 2}),
        (3, False, {"num_workers": 0}),
    ],
)
def test_a_sampler_that_learns_is_asked_when_the_originals_is(
    ranks: RankPool, n: int, moves: bool, options: dict[str, Any]
) -> None:
    expected = learned(moves, **options)
    for found in ranks(n, learned, moves, **options):
        assert found == expected


class Labels(Dataset[int]):
    def __init__(self) -> None:
        self.labels: Any = np.zeros(10**7, dtype=np.int64)
        self.soft: Any = torch.ones(1000, 3)
        self.pairs: Any = [("a.png", 1)] * 5000
        self.cache = torch.zeros(12, 2)
        self.seen: list[int] = []

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        self.cache[index] = 1 + world.rank()
        self.seen.append(index)
        return index


def change(data: Labels, what: str) -> None:
    rank = world.rank()
    if what == "labels":
        data.labels = np.random.RandomState(rank).randint(9, size=10**7)
    elif what == "soft":
        data.soft = torch.rand(1000, 3, generator=torch.Generator().manual_seed(rank))
    elif what == "pairs":
        data.pairs = [("a.png", rank)] * 5000
    elif what == "rounding":
        data.soft *= 1 + 1e-7 * rank


def changed(what: str, early: bool) -> str:
    data = Labels()
    loader = loaders.shard_loader(DataLoader(Subset(data, range(12)), 4))
    for _ in range(2):
        for _ in loader:
            if early:
                break
    change(data, what)
    try:
        iter(loader)
    except Divergence as error:
        exchange.piggybacked.clear()
        return str(error)
    return ""


@pytest.mark.parametrize("early", [False, True])
def test_labels_that_are_others_on_other_ranks_are_an_error(ranks: RankPool, early: bool) -> None:
    """Not so caches that each rank has filled with its rows, nor what is rounded otherwise."""
    for what in ("labels", "soft", "pairs"):
        for text in ranks(2, changed, what, early):
            assert text.startswith(f"'dataset.{what}' of the data set of a DataLoader is not the same on all ranks")
    for what in ("nothing", "rounding"):
        assert ranks(2, changed, what, early) == ["", ""]


def test_comparing_is_cheap() -> None:
    data = Subset(Labels(), list(range(10**6)))
    contents._rows(data)
    start = time.process_time()
    for _ in range(10):
        contents._rows(data)
    assert (time.process_time() - start) / 10 < 0.02
