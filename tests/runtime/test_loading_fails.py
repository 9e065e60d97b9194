"""Loading that fails: samples that can't be loaded, and data sets that are not the same on all ranks."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from dp2ddp_runtime import operations
from dp2ddp_runtime.base import world
from dp2ddp_runtime.batches import contents
from dp2ddp_runtime.batches import loader as loaders
from dp2ddp_runtime.ranks import exchange
from dp2ddp_runtime.ranks.exchange import Divergence
from rank_pool import RankPool
from torch.utils.data import DataLoader, Subset, TensorDataset
from training import Sized


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


class Gaps(Sized):
    """Some of its samples raise; those of them that torch can send from a worker."""

    size = 18

    def __init__(self, text: bool = False, bad: tuple[int, ...] = (1, 5, 8, 9, 15)) -> None:
        self.text, self.bad = text, bad

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


class Labels(Sized):
    size = 12

    def __init__(self) -> None:
        self.labels: Any = np.zeros(10**7, dtype=np.int64)
        self.soft: Any = torch.ones(1000, 3)
        self.pairs: Any = [("a.png", 1)] * 5000
        self.cache = torch.zeros(12, 2)
        self.seen: list[int] = []

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
