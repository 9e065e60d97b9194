"""Sharded loaders that are pickled, copied, and sharded once more."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from typing import Any

import torch
from dp2ddp_runtime.batches import loader as loaders
from rank_pool import RankPool
from torch.utils.data import BatchSampler, DataLoader, TensorDataset


def mark(worker_id: int) -> None:
    """A `worker_init_fn`."""


class Collating(DataLoader[Any]):
    """It leads to itself, and has what can't be pickled, which its pickles are made without."""

    def __init__(self, size: int) -> None:
        super().__init__(TensorDataset(torch.arange(9.0)), size, collate_fn=self.collate)
        self.lock = threading.Lock()

    def collate(self, samples: list[Any]) -> torch.Tensor:
        return torch.stack([sample for (sample,) in samples])

    def __reduce__(self) -> Any:
        return Collating, (self.batch_size,)


def saved_and_copied() -> list[Any]:
    """Pickles of loaders, the classes of copies, and how many loaders come of one that is sharded several times."""
    original = DataLoader(range(9), 4, shuffle=True, num_workers=3, worker_init_fn=mark)
    sharded = loaders.shard_loader(original)
    sharded.__dict__["itself"] = sharded
    copies = copy.copy(sharded), copy.deepcopy(sharded)
    assert copies[1].itself is copies[1]
    count = len({loaders.shard_loader(each) for each in (original, original, sharded, copy.copy(original))})
    sharded.__dict__.update(itself="the script's", worker_init_fn=None)
    pickles = [pickle.dumps(each) for each in (sharded, original, loaders.shard_loader(Collating(4)))]
    return [pickles, [type(each).__mro__[1:3] for each in copies], count]


def test_a_loader_is_saved_as_the_original_and_copied_as_it_is(ranks: RankPool) -> None:
    for pickles, kinds, count in ranks(2, saved_and_copied):
        assert not any(b"dp2ddp" in each for each in pickles)
        sharded, original, own = map(pickle.loads, pickles)
        for loaded, init in ((original, mark), (sharded, None)):
            assert (type(loaded), loaded.num_workers, loaded.worker_init_fn) == (DataLoader, 3, init)
            assert type(loaded.batch_sampler) is BatchSampler
        assert sharded.itself == "the script's"
        assert (type(own), own.batch_size) == (Collating, 4)
        assert kinds == [(loaders._RankLoader, DataLoader)] * 2
        assert count == 2, "a copy of the original's is another one"


def left_over() -> bool:
    before = weakref.ref(loaders.shard_loader(Collating(4)))
    gc.collect()
    return before() is not None


def test_a_loader_that_leads_to_itself_is_not_kept(ranks: RankPool) -> None:
    assert ranks(2, left_over) == [False] * 2
