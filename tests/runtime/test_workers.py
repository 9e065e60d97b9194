"""A loader's workers: their seeds, what data sets bring along seeded, and how long they live."""

from __future__ import annotations

import functools
import os
import random
from typing import Any

import dp2ddp_runtime as ddp
import numpy as np
import torch
from dp2ddp_runtime.world import world
from loading import Sized, described, longest
from rank_pool import RankPool, on_ranks
from torch.utils.data import ConcatDataset, DataLoader, Subset, get_worker_info


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
    ddp.seed_everything(5)
    collate = longest if everybody else None
    original = DataLoader(
        Seeds(), 4, num_workers=2, worker_init_fn=mark, collate_fn=collate, persistent_workers=persistent
    )
    loader = ddp.shard_loader(original)
    return [[[column.tolist() for column in batch[:5]] if not everybody else described(batch) for batch in loader]] * 2


def test_workers_of_ranks_have_seeds_of_their_own_unless_all_load_all(ranks: RankPool) -> None:
    first, second = ranks(2, worker_seeds, False, True)
    assert first == second
    for seeds, initial, drawn, numbers, marks in (*first[0], *first[1]):
        assert seeds == initial
        assert marks == [10, 10, 11, 11], "the script's worker_init_fn ran, after the seeding"
        for column in (seeds, drawn, numbers):
            assert not set(column[:2]) & set(column[2:]), "rows of another rank"
        assert len(set(drawn)) == len(set(numbers)) == 4
    first, second = ranks(2, worker_seeds, True, False)
    assert first == second == worker_seeds(True, False)


_global = np.random.RandomState(5)


class Moving(Sized):
    """Samples draw from a generator that was seeded where the data set was made."""

    size = 8

    def __init__(self, draw: Any) -> None:
        self.draw = draw

    def __getitem__(self, index: int) -> Any:
        return index, float(self.draw())


class Noise:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.RandomState(seed)

    def __call__(self) -> float:
        return self.rng.rand()


def closed() -> Any:
    own = torch.Generator().manual_seed(3)
    return lambda: torch.rand(1, generator=own)


def with_generators(workers: int, shard: bool = True) -> dict[str, Any]:
    torch.manual_seed(4)
    _global.seed(5)
    kinds: dict[str, Any] = {
        "RandomState": Moving(np.random.RandomState(47).rand),
        "nested": Subset(ConcatDataset([Moving(Noise(47)), Moving(Noise(48))]), range(4, 12)),
        "partial": Moving(functools.partial(random.Random(47).uniform, 0, 1)),
        "closure": Moving(closed()),
        "global": Moving(_draw_from_global),
    }
    found = {}
    for name, data in kinds.items():
        loader = DataLoader(data, 4, shuffle=True, num_workers=workers)
        if shard:
            loader = ddp.shard_loader(loader)
        found[name] = [[column.tolist() for column in batch] for _ in range(2) for batch in loader]
    return found


def _draw_from_global() -> float:
    return _global.rand()


def test_generators_of_a_data_set_draw_otherwise_in_each_rank_s_workers(ranks: RankPool) -> None:
    """As its workers' copies all begin alike, the samples of two ranks would have the same numbers."""
    expected = with_generators(1, False)
    first, second = ranks(2, with_generators, 1)
    assert first == second
    for name, batches in first.items():
        assert [rows for rows, _ in batches] == [rows for rows, _ in expected[name]]
        for _, drawn in batches:
            assert len(set(drawn)) == 4, name


def test_without_workers_what_they_draw_is_the_originals(ranks: RankPool) -> None:
    expected = with_generators(0, False)
    for found in ranks(2, with_generators, 0):
        assert found == expected


class Unseeded(Sized):
    """Each rank's data set has begun with numbers of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()

    def __getitem__(self, index: int) -> float:
        return self.rng.random()


@on_ranks(2, each=True)
def test_rank_0_s_numbers_count_where_nobody_has_seeded() -> bool:
    for workers in (0, 1):
        batches = [batch.tolist() for batch in ddp.shard_loader(DataLoader(Unseeded(), 4, num_workers=workers))]
        assert [each == batches for each in ddp.gather(batches)] == [True, True]
        assert len({number for batch in batches for number in batch}) == 11
    return True


class Workers(Sized):
    def __getitem__(self, index: int) -> int:
        return os.getpid()


@on_ranks(2, 3, each=True)
def test_ranks_share_the_workers() -> bool:
    loader = ddp.shard_loader(DataLoader(Workers(), 6, num_workers=3, persistent_workers=True))
    found: list[Any] = [{pid for batch in loader for pid in batch.tolist()} for _ in range(2)]
    assert found[0] == found[1], "they last"
    assert len(found[0]) == world.size * -(-3 // world.size)
    return True
