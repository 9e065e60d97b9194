"""Whole batches from loaders with workers: gathered while the script computes, and nothing else changes."""

from __future__ import annotations

import gc
import multiprocessing
import subprocess
import sys
import textwrap
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from dp2ddp_runtime import ahead, columns, journal, metrics, rng, world
from dp2ddp_runtime import loader as loaders
from rank_pool import RankPool
from test_launch import ENVIRONMENT
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset[Any]):
    """Numbers and their names; rank 1 can't load the `broken` one."""

    def __init__(self, size: int, broken: int | None = None) -> None:
        self.size = size
        self.broken = broken if world.rank() == 1 else None

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if index == self.broken:
            raise LookupError(f"no sample {index}")
        return index, f"name {index}"


def shard(dataset: Any, size: int = 4, **options: Any) -> Any:
    return loaders.shard_loader(DataLoader(dataset, size, **{"num_workers": 1, **options}), gather=True)


def plain(batch: Any) -> Any:
    return [column.tolist() if isinstance(column, torch.Tensor) else column for column in batch]


def epochs(wrapped: bool, **options: Any) -> list[Any]:
    """Two whole iterations and one that is left, with the script's own collectives and draws in between."""
    rng.seed_everything(3)
    original = DataLoader(Numbers(19), 4, **options)
    loader = loaders.shard_loader(original, gather=True) if wrapped else original
    seen: list[Any] = []
    for epoch in range(3):
        for number, batch in enumerate(loader):
            total = metrics.all_reduce(1) if wrapped else 1
            rows = loader.current.total if wrapped else len(batch[0])
            seen.append((plain(batch), rows, total / (world.world_size() if wrapped else 1), torch.rand(1).item()))
            if epoch == 1 and number == 1:
                break
    return seen


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_and_draws_are_the_originals(ranks: RankPool, persistent: bool) -> None:
    options = {"num_workers": 2, "shuffle": True, "persistent_workers": persistent}
    expected = epochs(False, **options)
    for n in (2, 3):
        assert ranks(n, epochs, True, **options) == [expected] * n


def started_at_each_batch(seed: int | None = None, **options: Any) -> list[int]:
    """How many gatherings have been started when the script gets each batch."""
    if seed is not None:  # torch 2.1 can't pickle a generator
        options["generator"] = torch.Generator().manual_seed(seed)
    started: list[int] = []
    real = columns.Gathering.__init__

    def counted(self: Any, *args: Any) -> None:
        started.append(1)
        real(self, *args)

    columns.Gathering.__init__ = counted  # type: ignore[method-assign]
    try:
        return [len(started) for _ in shard(Numbers(16), **options)]
    finally:
        columns.Gathering.__init__ = real  # type: ignore[method-assign]


def test_the_next_batch_is_under_way_while_the_script_has_one(ranks: RankPool) -> None:
    assert ranks(2, started_at_each_batch, shuffle=True) == [[2, 3, 4, 4]] * 2
    # The script might draw from the sampler's generator: then at the same places as in the original.
    assert ranks(2, started_at_each_batch, shuffle=True, seed=1) == [[1, 2, 3, 4]] * 2
    assert ranks(2, started_at_each_batch, batch_sampler=None, sampler=[1, 2, 3, 0]) == [[1]] * 2


def failing() -> list[Any]:
    """What the script sees of a sample in batch 2 that rank 1 can't load; it goes on after that."""
    batches = iter(shard(Numbers(20, broken=10)))
    seen: list[Any] = []
    for _ in range(6):
        try:
            seen.append(plain(next(batches))[0])
        except (LookupError, journal.PeerError) as error:
            seen.append((type(error).__name__, str(error).splitlines()[0]))
        except StopIteration:
            seen.append("end")
        metrics.all_reduce(1)
    return seen


def test_what_reading_ahead_raises_comes_with_its_batch(ranks: RankPool) -> None:
    first, second = ranks(2, failing)
    others = [[0, 1, 2, 3], [4, 5, 6, 7], None, [12, 13, 14, 15], [16, 17, 18, 19], "end"]
    for seen in (first, second):
        assert [value if index != 2 else None for index, value in enumerate(seen)] == others
    assert first[2][0] == "PeerError"
    assert first[2][1].startswith("rank 1 could not load its part of a batch: LookupError: ")
    assert second[2] == ("LookupError", "Caught LookupError in DataLoader worker process 0.")


def interrupted() -> Any:
    """Iterations that are left, dropped, or open beside others; then what is left of them."""
    loader = shard(Numbers(20), shuffle=True)
    dropped = iter(loader)
    next(dropped)
    gone = weakref.ref(dropped)
    del dropped
    was_gone = gone() is None
    one = iter(loader)
    next(one)
    two = iter(loader)
    mixed = [plain(next(batches)) for batches in (two, one, two, one)]
    rest = [len(list(batches)) for batches in (one, two)]
    list(loader)
    after = metrics.all_reduce(world.rank() + 1)
    del one, two
    gc.collect()
    deadline = time.monotonic() + 5
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    alive = [thing for thing in gc.get_objects() if isinstance(thing, ahead.Ahead)]
    return mixed, rest, after, was_gone, len(multiprocessing.active_children()), len(alive)


def test_iterations_may_be_left_or_overlap(ranks: RankPool) -> None:
    results = ranks(2, interrupted)
    assert results[0] == results[1]
    mixed, rest, after, was_gone, children, alive = results[0]
    assert len({tuple(numbers) for numbers, _ in mixed}) == 4
    assert rest == [2, 3]
    assert after == 3
    assert was_gone
    assert (children, alive) == (0, 0)


def test_the_script_may_end_with_a_batch_under_way(tmp_path: Path) -> None:
    body = """
        import torch, dp2ddp_runtime as ddp
        from torch.utils.data import DataLoader, TensorDataset

        ddp.setup()
        loader = ddp.shard_loader(DataLoader(TensorDataset(torch.arange(4000)), 40, num_workers=1), gather=True)
        for (batch,) in loader:
            if batch[0] == 120:
                break
        batches = iter(loader)
        print("got", next(batches)[0].sum().item())
        """
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(body))
    begin = time.monotonic()
    environment = {**ENVIRONMENT, "DP2DDP_NPROC": "2"}
    done = subprocess.run([sys.executable, path], env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "got 780\n", "")
    assert time.monotonic() - begin < 60
