"""Loaders that are pickled, copied, and sharded once more."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from dp2ddp_runtime.batches import loader as loaders
from rank_pool import RankPool
from torch.utils.data import DataLoader, TensorDataset


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


def left_over() -> bool:
    before = weakref.ref(loaders.shard_loader(Collating(4)))
    gc.collect()
    return before() is not None


def test_a_loader_that_leads_to_itself_is_not_kept(ranks: RankPool) -> None:
    assert ranks(2, left_over) == [False] * 2
