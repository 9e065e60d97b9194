"""What a sample draws is made a function of the sample: it doesn't matter which worker of which rank loads it.

Worker processes have random numbers of their own, in the original as in its conversion, and their numbers have no
meaning beyond that: which of them loads which batch is chance, or the number of ranks. So in workers every sample is
loaded with generators that are seeded from its index and from how often its data set was gone through, on both sides.
Then both sides train on the same samples, and what differs is a difference. (Without workers samples draw from the
script's own stream, whose numbers are compared as they are.)
"""

from __future__ import annotations

import ctypes
import random
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ClassVar

import torch
from dp2ddp_runtime import streams
from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import fetch


@dataclass(frozen=True)
class LoadOrder:
    """What a worker is to load.

    Attributes:
        index: a sample's index, or a batch's.
        passes: what the draws depend on beside the index: how often the data set was gone through.
        batch: its number in this pass.
    """

    index: Any
    passes: int
    batch: int

    def __reduce__(self) -> Any:
        return _order_in_worker, (self.index, self.passes, self.batch)


def _order_in_worker(index: Any, passes: int, batch: int) -> LoadOrder:
    """In a worker that isn't forked nothing is installed yet."""
    _install_in_worker()
    return LoadOrder(index, passes, batch)


def install(everywhere: bool = False) -> None:
    """From now on, and for the rest of the process, samples that workers load draw by their index.

    Args:
        everywhere: without workers, too: for scripts whose ranks don't draw as one process does.
    """
    _install_in_worker()
    passes = _Passes(everywhere)
    kind: Any = dataloader._BaseDataLoaderIter
    _replace(DataLoader, "__init__", _watching_seeds)
    reset, next_index = kind._reset, kind._next_index

    def begin(iterator: Any, *args: Any, **kwargs: Any) -> None:
        passes.begin(iterator)
        reset(iterator, *args, **kwargs)

    kind._reset = begin
    kind._next_index = lambda iterator: passes.order(iterator, next_index(iterator))


class _Passes:
    """Counts how often each data set is gone through."""

    def __init__(self, everywhere: bool) -> None:
        self._everywhere = everywhere
        self._seen: dict[int, tuple[Any, int]] = {}  # by id; the data set is kept, so that no other one gets its id

    def order(self, iterator: Any, index: Any) -> Any:
        """What `iterator` tells a worker to load, where it would be `index`."""
        if not (iterator._num_workers or self._everywhere):
            return index
        if not hasattr(iterator, "_dp2ddp_pass"):
            self.begin(iterator)
        number = iterator._dp2ddp_batches
        iterator._dp2ddp_batches += 1
        return LoadOrder(index, iterator._dp2ddp_pass, number)

    def begin(self, iterator: Any) -> None:
        """A pass begins."""
        data = iterator._dataset
        _, passes = self._seen.get(id(data), (data, 0))
        self._seen[id(data)] = (data, passes + 1)
        iterator._dp2ddp_pass, iterator._dp2ddp_batches = passes + 1, 0


def _install_in_worker() -> None:
    if not hasattr(fetch._MapDatasetFetcher.fetch, "__wrapped__"):
        _replace(fetch._MapDatasetFetcher, "fetch", _fetching)
        _replace(fetch._IterableDatasetFetcher, "fetch", _fetching_next)


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


class _Seeding:
    """A `worker_init_fn` of the script's; notes which of the global generators it has moved.

    Which numbers it gives them is a worker's business, whose samples are chance. That it does decides what is drawn.
    """

    moved: ClassVar[tuple[bool, ...]] = ()

    def __init__(self, begin: Callable[[int], None]) -> None:
        self._begin = begin

    def __call__(self, worker: int) -> None:
        before = _generators()
        self._begin(worker)
        _Seeding.moved = tuple(one != other for one, other in zip(before, _generators()))


def _watching_seeds(init: Callable[..., None]) -> Callable[..., None]:
    @wraps(init)
    def make(loader: Any, *args: Any, **kwargs: Any) -> None:
        init(loader, *args, **kwargs)
        if loader.worker_init_fn is not None:
            loader.worker_init_fn = _Seeding(loader.worker_init_fn)

    return make


def _fetching_next(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An iterable data set draws as it goes, alike on all ranks, for each of them loads all of it."""

    @wraps(original)
    def load(fetcher: Any, order: Any) -> Any:
        return original(fetcher, order.index if isinstance(order, LoadOrder) else order)

    return load


def _fetching(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @wraps(original)
    def load(fetcher: Any, order: Any) -> Any:
        if not isinstance(order, LoadOrder):
            return original(fetcher, order)
        draws = _Draws(fetcher.dataset, (order.passes, *_Seeding.moved))
        if not fetcher.auto_collation:
            data = draws.seeded(order.index, lambda: fetcher.dataset[order.index])
        else:
            data = [draws.seeded(index, partial(_sample, fetcher.dataset, index)) for index in order.index]
        # A collate_fn that draws is given the whole batch on every rank.
        return draws.seeded(("batch", order.batch), lambda: fetcher.collate_fn(data))

    return load


def _sample(dataset: Any, index: Any) -> Any:
    if getattr(dataset, "__getitems__", None):
        return dataset.__getitems__([index])[0]
    return dataset[index]


class _Draws:
    """The generators from which a data set may draw: the global ones, and its own.

    Args:
        dataset: the data set.
        key: what all draws depend on.
    """

    def __init__(self, dataset: Any, key: tuple[int, ...]) -> None:
        self._own = streams.generators_in(dataset)
        self._key = key

    def seeded(self, what: Any, load: Callable[[], Any]) -> Any:
        """What `load` returns, drawing by `what`. The generators have their states back afterwards."""
        before = streams.Position(self._own)
        number = zlib.crc32(repr((*self._key, _plain(what))).encode())
        try:
            random.seed(number)
            torch.default_generator.manual_seed(
                number
            )  # not by `torch.manual_seed`, at which ranks' streams start anew
            if streams.np is not None:
                streams.np.random.seed(number)
            for generator in self._own:
                streams.reseed(generator, number)
            return load()
        finally:
            before.go_back()


def _plain(index: Any) -> Any:
    """The same text for an index, whatever type of number it is."""
    try:
        return int(index)
    except (TypeError, ValueError):
        return index


def _generators() -> list[int]:
    """Checksums of the global generators' states: torch's on the CPU, Python's, NumPy's (0 if it isn't imported)."""
    state = torch.get_rng_state()
    found = [
        zlib.crc32(ctypes.string_at(state.data_ptr(), state.numel())),
        zlib.crc32(repr(random.getstate()).encode()),
    ]
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "random"):
        return [*found, 0]
    _, keys, position, *_ = numpy.random.get_state()
    return [*found, zlib.crc32(keys.tobytes(), position)]
