"""Batch samplers that yield one rank's part of each batch that the original's would yield."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from . import rng, world
from .exchange import exchange
from .nesting import chunk_sizes, own_chunk

_TORCHS_OWN = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


class Delegate:
    """Stands in for `inner`, and has what it has."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # not there yet while unpickling
            raise AttributeError(name)
        return getattr(self._inner, name)


class RankBatchSampler(Delegate):
    """Cuts each batch of `inner` into `torch.chunk`'s sizes and yields this rank's chunk; rank 0's where it has none.

    The inner sampler runs on every rank, with the shared stream. Whatever isn't one of torch's own samplers may
    have random numbers of its own, so there rank 0's batches are taken.

    Args:
        inner: the original batch sampler.
        splits: whether batches are cut. If not, every rank gets all of each.

    Attributes:
        sizes: each rank's number of samples, for each batch that the latest iteration has yielded. The reader takes
            them off.
        state: where batches aren't cut, the shared stream after the sampler's own draws for the latest one.
    """

    def __init__(self, inner: Any, splits: bool) -> None:
        super().__init__(inner)
        self.splits = splits
        self.sizes: deque[list[int]] = deque()
        self.state: rng.State | None = None

    def __iter__(self) -> Iterator[Any]:
        self.sizes = deque()
        return self._cut(iter(self._inner), self.sizes)

    def _cut(self, batches: Iterator[Any], sizes: deque[list[int]]) -> Iterator[Any]:
        is_torchs = type(self._inner) is BatchSampler and type(self._inner.sampler) in _TORCHS_OWN
        draws = True
        while True:
            with rng.shared() if draws else contextlib.nullcontext():
                batch = next(batches, None)
            draws = not is_torchs  # torch's draw once, at the first batch
            batch = None if batch is None else list(batch)
            if not is_torchs:
                batch = exchange("a batch of the sampler", batch if world.is_main() else None)[0]
            if batch is None:
                return
            sizes.append(chunk_sizes(len(batch), world.world_size()))
            if not self.splits:
                self.state = rng.capture()
            yield batch[own_chunk(sizes[-1])] if self.splits else batch
