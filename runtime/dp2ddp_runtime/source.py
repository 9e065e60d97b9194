"""A loader's batches one by one, as the ranks load them in their own processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import rng, samplers


class Loaded(NamedTuple):
    """A batch, or this rank's share of it."""

    data: Any
    cut: samplers.Cut
    drew: bool = False
    """Whether loading it drew random numbers from the global generators."""


class Source:
    """The batches of a loader without workers.

    Args:
        batches: the loader's own iterator, torch's for loaders without workers.
        sampler: its batch sampler. (There may be other iterators over it.)
    """

    def __init__(self, batches: Any, sampler: samplers.RankBatchSampler) -> None:
        self._batches = batches
        self._sampler = sampler
        self._cuts = sampler.latest

    def load_all(self, watch: bool = False) -> Loaded:
        """All of the next batch, as the original script loads it: with the shared stream.

        Args:
            watch: find out whether loading it draws random numbers.
        """
        states: list[rng.State] = []
        self._sampler.splits, self._sampler.watched = False, states if watch else None
        try:
            data, cut = take(self._batches, self._cuts)
        finally:
            self._sampler.watched = None
        return Loaded(data, cut, watch and not rng.alike(states[-1], rng.capture()))

    def reload_all(self, share: Loaded) -> Loaded:
        """All of the batch of which `load_share` has just loaded this rank's part, as if it had not been loaded yet."""
        data = self._batches._dataset_fetcher.fetch(self._sampler.uncut)
        return Loaded(data, share.cut)

    def load_share(self, watch: bool = False) -> Loaded:
        """This rank's share of the next batch. What it draws comes from a stream of this rank's own.

        Args:
            watch: find out whether loading it draws random numbers.
        """
        self._sampler.splits = True
        with rng.loading:
            before = rng.capture() if watch else None
            data, cut = take(self._batches, self._cuts)
            drew = before is not None and not rng.alike(before, rng.capture())
        return Loaded(data, cut, drew)


def take(batches: Iterator[Any], cuts: deque[samplers.Cut]) -> tuple[Any, samplers.Cut]:
    """The next batch and how it was cut. A batch that can't be loaded is passed over, as the loader does."""
    try:
        data = next(batches)
    except Exception:
        if cuts:
            cuts.popleft()
        raise
    return data, cuts.popleft()
