"""Batch samplers that yield one rank's part of each batch that the original's would yield."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from . import rng, world
from .exchange import exchange
from .nesting import chunk_sizes

_TORCHS_OWN = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


class Cut(NamedTuple):
    """How a batch is cut."""

    sizes: tuple[int, ...] | None
    """Each rank's number of samples; None if the batch can't be cut: then every rank has all of it."""


class RankBatchSampler(Sampler[Any]):
    """Cuts each batch of `inner` into `torch.chunk`'s sizes and yields this rank's chunk; rank 0's where it has none.

    The inner sampler runs on every rank, with the shared stream. Whatever isn't one of torch's own samplers may
    have random numbers of its own, so there rank 0's batches are taken.

    Args:
        inner: the original batch sampler.

    Attributes:
        splits: whether the next batch is cut. (If not, every rank gets all of it, but still notes how to cut it.)
        watched: where not None, gets the shared stream's state after the sampler's own draws for the latest batch.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.latest: deque[Cut] = deque()
        self.plain = type(inner) is BatchSampler and type(inner.sampler) in _TORCHS_OWN
        self.splits = True
        self.watched: list[rng.State] | None = None

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
                batch = exchange("a batch of the sampler", note=batch if world.is_main() else None)[0].note
            if batch is None:
                return
            cut, own = self._own_part(batch)
            cuts.append(cut)
            if self.watched is not None:
                self.watched.append(rng.capture())
            yield own

    def _own_part(self, batch: Any) -> tuple[Cut, Any]:
        if not hasattr(batch, "__len__") or not hasattr(batch, "__getitem__") or isinstance(batch, (str, bytes, dict)):
            return Cut(None), batch
        sizes = tuple(chunk_sizes(len(batch), world.world_size()))
        if not self.splits:
            return Cut(sizes), batch
        index = world.rank() if sizes[world.rank()] else 0
        start = sum(sizes[:index])
        return Cut(sizes), batch[start : start + sizes[index]]


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
