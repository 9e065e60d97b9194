"""Batch samplers that yield one rank's part of each batch that the original's would yield."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from . import rng, world
from .exchange import Exchange
from .nesting import chunk_sizes
from .payload import Part

_TORCHS_OWN = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


class Cut(NamedTuple):
    """How a batch is cut: its size (None if it can't be cut), how many ranks have a part of it."""

    total: int | None
    chunks: int


class RankBatchSampler(Sampler[Any]):
    """Cuts each batch of `inner` into `torch.chunk`'s sizes and yields this rank's chunk.

    The inner sampler runs on every rank, with the shared stream. Whatever isn't one of torch's own samplers may
    have random numbers of its own, so there rank 0's batches are taken.

    Args:
        inner: the original batch sampler.
        placeholders: a rank without a chunk gets the batch's first index instead of an error, and a batch that can't
            be cut goes to every rank.

    Attributes:
        splits: whether the next batch is cut. (If not, every rank gets all of it, but still notes how to cut it.)
        uncut: the latest batch, as the original's sampler gave it.
        watched: where not None, gets the shared stream's state after the sampler's own draws for the latest batch.
    """

    def __init__(self, inner: Any, placeholders: bool) -> None:
        self.inner = inner
        self.placeholders = placeholders
        self.latest: deque[Cut] = deque()
        self.plain = type(inner) is BatchSampler and type(inner.sampler) in _TORCHS_OWN
        self.splits = True
        self.uncut: Any = None
        self.watched: list[rng.State] | None = None
        self._exchange = Exchange()

    def __iter__(self) -> Iterator[Any]:
        self.latest = deque()
        return self._cut(iter(self.inner), self.latest)

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not there yet while unpickling
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _cut(self, batches: Iterator[Any], cuts: deque[Cut]) -> Iterator[Any]:
        drawn = False
        while True:
            # torch's own samplers draw from the shared stream once, at the first batch.
            if drawn and self.plain:
                batch = next(batches, None)
            else:
                with rng.shared:
                    batch = next(batches, None)
                drawn = True
            if not self.plain:
                batch = self._main_batch(batch)
            if batch is None:
                return
            self.uncut = batch
            cut, own = self._own_part(batch)
            cuts.append(cut)
            if self.watched is not None:
                self.watched.append(rng.capture())
            yield own

    def _main_batch(self, batch: Any) -> Any:
        return self._exchange(Part([], batch if world.is_main() else None), torch.device("cpu"))[0].note

    def _own_part(self, batch: Any) -> tuple[Cut, Any]:
        if not hasattr(batch, "__len__") or not hasattr(batch, "__getitem__") or isinstance(batch, (str, bytes, dict)):
            return Cut(None, 1), batch
        sizes = chunk_sizes(len(batch), world.world_size())
        count = sum(size > 0 for size in sizes)
        if count < len(sizes) and not self.placeholders:
            raise RuntimeError(
                f"a batch of {len(batch)} samples leaves ranks idle, but the sampler's length promised larger ones: "
                "pass gather=True to shard_loader"
            )
        if not self.splits:
            return Cut(len(batch), count), batch
        start = sum(sizes[: world.rank()])
        own = batch[start : start + sizes[world.rank()]] if sizes[world.rank()] else batch[:1]
        return Cut(len(batch), count), own


def splits_evenly_enough(inner: Any) -> bool:
    """Whether each batch is known to have samples for every rank."""
    if type(inner) is not BatchSampler:
        return False
    try:
        samples = len(inner.sampler)  # type: ignore[arg-type]
    except TypeError:
        return False
    sizes = [inner.batch_size] if samples >= inner.batch_size else []
    if samples % inner.batch_size and not inner.drop_last:
        sizes.append(samples % inner.batch_size)
    return all(all(chunk_sizes(size, world.world_size())) for size in sizes)
