"""Batch samplers that yield one rank's part of each batch that the original's would yield."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Iterator
from typing import Any, Callable

from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ..base import voice, world
from ..base.nesting import chunk_sizes, own_chunk
from ..ranks import rng
from ..ranks.exchange import exchange

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
        lead: by how many batches the original's workers are further ahead than this rank's. So far `inner` is ahead of
            what is taken here: a sampler that learns is asked for each batch when the original's is.

    Attributes: sizes: each rank's number of samples, for each batch that was yielded and not yet read. drawn: is
    called when a batch is drawn, before its samples are loaded, with whether all of them will be. latest: the whole
    batches of the latest iteration.
    """

    def __init__(self, inner: Any, splits: bool, lead: int) -> None:
        super().__init__(inner)
        self.splits = splits
        self.lead = lead
        self.sizes: deque[list[int]] = deque()
        self.drawn: Callable[[bool], None] = lambda is_whole: None
        self.latest = Drawn(iter(()))
        self._again = False

    def __iter__(self) -> Iterator[Any]:
        self.sizes = deque()
        if not self._again:
            self.latest = Drawn(self._draw(iter(self._inner)), self.lead)
        return map(functools.partial(self._cut, self.sizes), self.latest)

    @contextlib.contextmanager
    def again(self, drawn: Drawn) -> Iterator[None]:
        """What begins to iterate meanwhile gets the batches that were `drawn`, from the first one on, and uncut.

        None is drawn meanwhile: as many as the original's workers take at once have been.
        """
        drawn.rewind()
        self.splits, self.lead = False, 0
        self.latest, self._again = drawn, True
        try:
            yield
        finally:
            self._again = False

    def _cut(self, sizes: deque[list[int]], batch: list[Any]) -> Any:
        sizes.append(chunk_sizes(len(batch), world.world_size()))
        own = batch[own_chunk(sizes[-1])] if self.splits else batch
        return own if sizes[-1][world.rank()] or not self.splits else voice.StandIn(own)

    def _draw(self, batches: Iterator[Any]) -> Iterator[list[Any]]:
        """The whole batches."""
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
            self.drawn(not self.splits)
            yield batch


class Drawn:
    """The whole batches of an iteration, which are drawn ahead: when one is taken, so are the `lead` ones behind it.

    An error of the sampler's comes where it is drawn; what was drawn before that is there afterwards. At first all are
    kept, in case they are wanted once more.
    """

    def __init__(self, batches: Iterator[list[Any]], lead: int = 0) -> None:
        self._batches, self._lead = batches, lead
        self._ready: deque[list[Any]] = deque()
        self._kept: list[list[Any]] | None = []
        self._is_held = False

    def __iter__(self) -> Drawn:
        return self

    def __next__(self) -> list[Any]:
        if self._is_held:
            raise StopIteration
        while len(self._ready) <= self._lead and (batch := next(self._batches, None)) is not None:
            self._ready.append(batch)
            if self._kept is not None:
                self._kept.append(batch)
        if not self._ready:
            raise StopIteration
        return self._ready.popleft()

    def forget(self) -> None:
        """They aren't wanted once more."""
        self._kept = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile this is as if there were no more."""
        self._is_held = True
        yield
        self._is_held, self._lead = False, 0

    def rewind(self) -> None:
        """Begin anew, and draw no more of them than are taken."""
        self._ready, self._kept, self._lead = deque(self._kept or []), None, 0
