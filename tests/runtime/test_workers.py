"""A loader's workers: their seeds, when they are forked, and how long they live."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import pytest
import torch
from dp2ddp_runtime.batches import loader as loaders
from dp2ddp_runtime.ranks import collectives, rng
from rank_pool import RankPool, on_ranks
from torch.utils.data import (
    DataLoader,
    TensorDataset,
    get_worker_info,
)
from training import Sized, described, longest


class Seeds(Sized):
    size = 8

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


@pytest.mark.skipif(sys.version_info >= (3, 11, 10), reason="CPython is mended there")
@on_ranks(2, each=[0, 3, 1])
def test_workers_are_forked_while_no_thread_of_gloo_s_runs() -> list[int]:
    """How often three passes of a loader wait for gloo's threads: without workers, with them, with lasting ones."""
    waits: list[None] = []
    let_go, collectives.let_threads_go = collectives.let_threads_go, lambda: waits.append(None)
    found = []
    try:
        for options in ({}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}):
            loader, before = loaders.shard_loader(DataLoader(range(12), 6, **options)), len(waits)
            assert [len(list(loader)) for _ in range(3)] == [2, 2, 2]
            found.append(len(waits) - before)
    finally:
        collectives.let_threads_go = let_go
    return found


@on_ranks(2, each=[[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]])
def test_workers_of_a_fork_server_live_as_long_as_they_are_needed() -> list[list[float]]:
    """Workers that aren't children of their rank."""
    data = TensorDataset(torch.arange(8.0))
    loader = loaders.shard_loader(DataLoader(data, 4, num_workers=1, multiprocessing_context="forkserver"))
    return [batch.tolist() for (batch,) in loader]
