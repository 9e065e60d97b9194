"""Loaders of which each rank loads its rows of every batch.

The script gets whole batches, as a model from `wrap_model` takes them; their tensors are `rows.Rows`. Where rows can't
be told apart every rank loads all of them, as the original does.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate, default_collate_fn_map
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from . import codec, place, streams
from .acting import acting
from .columns import ITEMS, SAME, Collate, Column, about, joined, marked
from .nesting import chunks, nested, tensors
from .rows import Rows
from .world import agree, exchange, world

_log = logging.getLogger("dp2ddp_runtime")
_MIXED = "Let its samples have one type and shape, or give it a collate_fn: then every rank loads whole batches"
_DRAIN = 0.05  # seconds that gloo's threads need to free the tensors of a collective that has just ended


def shard_loader(loader: Any, rows: bool = False) -> Any:
    """The loader itself, from now on one of which each rank loads its rows. Called on every rank; no collective.

    Its batches, their order, their number (`len`) and `batch_size` stay the original's. With one rank, before the first
    wrap, in threads, in workers and while samples are loaded it does what it did.

    Every rank loads whole batches where rows can't be told apart: with a `collate_fn` of the script's (unless `rows`),
    a loader class with an iterator of its own, an `IterableDataset`, `batch_size=None`, and iterables that are no
    `DataLoader`, which stay as they are. Without workers, so it does from the batch on for which something draws random
    numbers: what that draws decides on the shuffles that follow. With workers, each rank's have seeds of their own.

    Args:
        loader: a `DataLoader`, or another iterable that gives the same batches on every rank.
        rows: whether rows stay apart in the loader's `collate_fn`: what it makes of some samples, and of others, one
            behind the other, is what it makes of all. That is believed; shapes are compared at each batch.

    Raises:
        TypeError: `loader` isn't iterable.
        ValueError: with `rows`, its rows can't be told apart for another reason.
    """
    if not isinstance(loader, DataLoader):
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise TypeError(f"shard_loader takes a DataLoader or another iterable, not {type(loader).__name__}")
        if rows:
            raise ValueError(f"shard_loader(loader, rows=True) takes a DataLoader, not a {type(loader).__name__}")
        return loader
    if not isinstance(loader, _Sharded):
        kind: Any = type(loader)
        loader.__class__ = _sharded(kind)
        loader.__dict__["_dp2ddp"] = _Known(kind)
    known: _Known = loader.__dict__["_dp2ddp"]
    known.rows = known.rows or bool(rows)
    if rows and (why := _why_whole(loader)):
        raise ValueError(f"shard_loader(loader, rows=True): {known.kind.__name__} loads whole batches, as {why}")
    return loader


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the loader's sampler, batch sampler and data set the epoch that begins, from 0, where they have a method."""
    for name in ("sampler", "batch_sampler", "dataset"):
        part: Any = getattr(loader, name, None)
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


class _Known:
    """What is known of a loader, kept with it."""

    def __init__(self, kind: type[DataLoader[Any]]) -> None:
        self.kind = kind  # its class in the script
        self.rows = False  # whether rows are said to stay apart in a `collate_fn` of the script's
        self.whole = False  # every rank loads all, as loading draws
        self.batches = 0  # that were loaded without workers

    @property
    def is_checked(self) -> bool:
        """Whether the ranks meet at this batch."""
        return not self.batches & (self.batches - 1)


class _Sharded(DataLoader[Any]):
    """Mixed into a loader's class. Whether its ranks share the work is decided whenever it is iterated over."""

    def __iter__(self) -> Any:  # at once, as the original's: what it draws is drawn now
        if world.alone or (_loading and _is_main_thread()):
            return super().__iter__()
        if not _is_main_thread():
            streams.iterated_by_threads.append(self)
            with streams.lock:
                return super().__iter__()
        streams.adopt(streams.generators_in(self.generator, self.sampler, self.batch_sampler, self.dataset))
        known: _Known = self.__dict__["_dp2ddp"]
        why = _why_whole(self) or (not self.num_workers and known.whole and "its samples draw random numbers")
        if why and 0 < _log.level <= logging.DEBUG:  # asked of this logger: scripts log to files
            _log.debug("%s loads whole batches on every rank: %s", known.kind.__name__, why)
        return super().__iter__() if why else _Batches(self, super().__iter__)

    def _get_iterator(self) -> Any:
        is_own = self.__dict__["_dp2ddp"].kind._get_iterator is not DataLoader._get_iterator
        return super()._get_iterator() if world.alone or self.num_workers or is_own else _Locked(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        known: _Known = self.__dict__["_dp2ddp"]
        return _again, (known.kind, {**self.__dict__, "_iterator": None})


@functools.cache
def _sharded(kind: Any) -> Any:
    return type(kind.__name__, (_Sharded, kind), {"__module__": kind.__module__, "__qualname__": kind.__qualname__})


def _again(kind: Any, state: dict[str, Any]) -> Any:
    """A sharded loader that was copied or pickled."""
    loader = kind.__new__(_sharded(kind))
    loader.__dict__.update(state)
    return loader


def _why_whole(loader: DataLoader[Any]) -> str:
    """Why ranks can't load a batch together; empty if they can."""
    known: _Known = loader.__dict__["_dp2ddp"]
    kind = known.kind
    if kind.__iter__ is not DataLoader.__iter__ or kind._get_iterator is not DataLoader._get_iterator:
        return f"{kind.__name__} has an iterator of its own"
    if isinstance(loader.dataset, IterableDataset):
        return "its data set is an IterableDataset"
    if loader.batch_sampler is None:
        return "it has batch_size=None"
    if known.rows:
        return ""
    if loader.collate_fn is not default_collate:
        return "it has a collate_fn of its own"
    if any(fn.__module__ != default_collate.__module__ for fn in default_collate_fn_map.values()):
        return "default_collate was extended"
    return ""


_loading: list[Any] = []  # passes that load samples in this process, now


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class _Locked(_SingleProcessDataLoaderIter):
    """Torch's own pass over a loader without workers. While it loads samples, in whatever thread, no forward draws."""

    def _next_data(self) -> Any:
        with streams.lock:
            if not _is_main_thread():
                return super()._next_data()  # type: ignore[no-untyped-call]
            _loading.append(self)
            try:
                return super()._next_data()  # type: ignore[no-untyped-call]
            finally:
                _loading.pop()


# ---- a pass ----------------------------------------------------------------------------------------------------------


class _Batches:
    """A pass over a sharded loader: whole batches, of which this rank has loaded its rows.

    Without workers the ranks meet at those of a loader's batches whose number is a power of two: where something has
    drawn random numbers, all load it once more. In between that is an error.
    """

    def __init__(self, loader: Any, begin: Callable[[], Any]) -> None:
        self._known: _Known = loader.__dict__["_dp2ddp"]
        self._name = self._known.kind.__name__
        self._has_workers = loader.num_workers > 0
        with _for_this_rank(loader):
            if self._has_workers and loader._iterator is None and sys.version_info < (3, 11, 10):
                # A worker that is forked while a thread of gloo's has the interpreter can hang for ever:
                # https://github.com/python/cpython/issues/112275
                time.sleep(_DRAIN)
            self._batches = begin()
        self._own: _OwnBatches = self._batches._index_sampler
        self._sizes = self._own.sizes
        self._numbers = itertools.count()

    def __iter__(self) -> _Batches:
        return self

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:  # torch's own, such as its workers
        return getattr(self.__dict__["_batches"], name)

    def __next__(self) -> Any:
        number = next(self._numbers)
        if self._has_workers:
            return self._put_together(self._load(), self._sizes[number], drew=False)
        self._own.whole |= not _is_main_thread()  # where the ranks can't meet
        with streams.lock:
            batch = self._load()
            if self._own.whole:
                return nested(lambda column: column.value, batch, Column)
            drew = self._own.before.moved
        self._known.batches += 1
        if drew and not self._known.is_checked:
            raise RuntimeError(
                f"the samples of a {self._name} draw random numbers at {place.line()}, which the first "
                f"{self._known.batches} batches did not: the ranks, which load their own rows, can't draw them as the "
                "original does. With a collate_fn of your own (`lambda samples: default_collate(samples)`) every rank "
                "loads whole batches; with num_workers=1 or more samples have numbers of their own in the original, too"
            )
        return self._put_together(batch, self._sizes[number], drew)

    def _load(self) -> Any:
        try:
            with acting("sample"):  # files of samples are those of the rank that loads them
                return next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            if _is_main_thread():  # for a script that goes on, on this rank alone
                agree(f"what loading a batch of a {self._name} raises", repr(error))
            raise

    def _put_together(self, loaded: Any, sizes: Sequence[int], drew: bool) -> Any:
        """The whole batch of this rank's rows. A collective, but for tensors that workers have loaded."""
        batch = marked(loaded)
        columns: list[Column] = tensors(batch, Column)
        items = [column.value for column in columns if column.kind == ITEMS]
        parts: Any = []
        if items or (not self._has_workers and self._known.is_checked):
            told = exchange(f"a batch of a {self._name}", [drew, items])
            if any(each.value[0] for each in told):
                return self._load_all()
            parts = zip(*(each.value[1] for each, size in zip(told, sizes) if size))
        if _is_main_thread():
            what = f"what a batch of a {self._name} is, but for its rows,"
            agree(what, [about(column) for column in columns], _MIXED)
        return nested(functools.partial(_as_whole, sizes, iter(parts)), batch, Column)

    def _load_all(self) -> Any:
        """The batch once more, as the original loads it: with the shared streams. And so all that follow."""
        self._own.before.go_back()
        streams.adopt(self._own.generators or ())
        self._known.whole = self._own.whole = self._own.again = True
        return next(self)


def _as_whole(sizes: Sequence[int], items: Iterator[Any], column: Column) -> Any:
    if column.kind == ITEMS:
        return joined(column.value, next(items))
    if column.kind == SAME:
        return column.value
    return Rows(column.value, sizes)


@contextlib.contextmanager
def _for_this_rank(loader: Any) -> Iterator[None]:
    """Meanwhile what a pass begins with is this rank's."""
    workers = -(-loader.num_workers // world.local_size)
    lead = (loader.num_workers - workers) * (loader.prefetch_factor or 0)
    generators = streams.generators_in(loader.sampler, loader.batch_sampler, loader.dataset)
    new: dict[str, Any] = {
        "batch_sampler": _OwnBatches(loader.batch_sampler, lead, None if workers else generators),
        "num_workers": workers,
        "worker_init_fn": functools.partial(_seed_worker, world.rank, world.size, loader.worker_init_fn),
    }
    if loader.collate_fn is not default_collate:
        new["collate_fn"] = Collate(loader.collate_fn)
    if loader._iterator is not None and not isinstance(loader._iterator._index_sampler, _OwnBatches):
        # Lasting workers, from before the first wrap, load whole batches. Others come, without the draw of their seed.
        loader.__dict__["_iterator"] = None
        new["generator"] = torch.Generator().manual_seed(torch.initial_seed())
    if hasattr(loader, "in_order"):
        new["in_order"] = True  # the ranks' rows have to belong together
    before = {name: loader.__dict__[name] for name in new}
    loader.__dict__.update(new)  # a DataLoader doesn't let them be set
    try:
        yield
    finally:
        loader.__dict__.update(before)


def _seed_worker(rank: int, ranks: int, then: Callable[[int], None] | None, worker_id: int) -> None:
    """A `worker_init_fn`: this rank's workers have seeds and ids of their own; then the script's function runs.

    Scripts seed their own generators from either. What a data set has brought along seeded goes on differently, too.
    """
    info: Any = get_worker_info()
    seed = (info.seed + (rank + 1) * 0x9E3779B97F4A7C15) % (1 << 63)  # spreads ranks far beyond worker ids
    worker_id += rank * info.num_workers
    for name, value in {"seed": seed, "id": worker_id, "num_workers": ranks * info.num_workers}.items():
        object.__setattr__(info, name, value)  # it is read-only
    streams.seed_everything(seed)
    for generator in streams.generators_in(info.dataset) if rank else ():
        streams.reseed(generator, zlib.crc32(codec.encode([rank, streams.state_of(generator)])))
    if then is not None:
        then(worker_id)


class _OwnBatches:
    """A batch sampler of this rank's part of each batch, in `torch.chunk`'s sizes; rank 0's on a rank that gets none.

    Args:
        inner: the original's.
        lead: by how many batches the original's workers are further ahead than this rank's. So far `inner` is ahead of
            what is taken here: a sampler that draws or learns is asked for each batch when the original's is.
        generators: of the script's, which samples may draw from; None where workers load them.

    Attributes:
        sizes: each rank's number of samples, of each batch of the latest pass.
        before: where the random streams were before the latest batch's samples were loaded.
        whole, again: whether a batch isn't cut, and whether the latest one comes once more.
    """

    def __init__(self, inner: Any, lead: int, generators: Sequence[Any] | None) -> None:
        self.inner, self.lead, self.generators = inner, lead, generators
        self.sizes: list[Sequence[int]] = []
        self.before: Any = None
        self.whole = self.again = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        self.sizes = []
        return self._cut(iter(self.inner), self.sizes)  # at once, as the original's

    def _cut(self, batches: Iterator[Any], all_sizes: list[Sequence[int]]) -> Iterator[Any]:
        ready: deque[list[Any]] = deque()
        while True:
            while len(ready) <= self.lead and (batch := next(batches, None)) is not None:
                ready.append([*batch])
                _agree_on(ready[-1])
            if not ready:
                _agree_on(None)
                return
            batch = ready.popleft()
            sizes = chunks(len(batch))
            all_sizes.append(sizes)
            rank = world.rank if sizes[world.rank] else 0
            start = sum(sizes[:rank])
            if self.generators is not None and not self.whole:
                self.before = streams.Position(self.generators)
            yield batch if self.whole else batch[start : start + sizes[rank]]
            if self.again:
                self.again = False
                yield batch


def _agree_on(batch: list[Any] | None) -> None:
    """The ranks' samplers give the same batches, or this is told with the next message."""
    if _is_main_thread():
        agree("the batch that a loader's sampler gives", batch and [len(batch), zlib.crc32(repr(batch).encode())])
