"""Loaders that give each rank its shard of every batch, or every rank the whole batch, loaded together."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from . import nesting, samplers, shards, streams, world
from .exchange import Exchange, Part, concatenate

_log = logging.getLogger("dp2ddp_runtime")


def shard_loader(loader: Any, gather: bool = False) -> Any:
    """The loader's equivalent for this rank. With a single rank, the loader itself.

    Batches, their order, their number (`len`) and `batch_size` stay the original's. By default the script gets this
    rank's rows of each batch, in `torch.chunk`'s sizes. It gets the whole batch, on every rank, if `gather` is set; or
    if shards can't be exact (`loader.whole` tells): when a batch is too small for all ranks to have a row, or its size
    isn't known beforehand (a batch sampler or `collate_fn` of the script's, an `IterableDataset`, `batch_size=None`).
    Whole batches are loaded together, each rank its rows, where the default `collate_fn` makes that exact.
    Without workers, a dataset that draws random numbers is loaded whole on every rank, as what it draws decides on
    the shuffles that follow; with workers, each rank's have seeds of their own.

    Args:
        loader: a `DataLoader`; or any other iterable, which then has to yield the same batches on every rank.
        gather: give every rank the whole batch, as a model wrapped with `gather=True` takes it.

    Raises:
        TypeError: `loader` isn't iterable.
    """
    if world.world_size() == 1:
        return loader
    if isinstance(loader, _RankLoader):
        return loader if loader._gather == gather else _rank_loader(loader._original, gather)
    if isinstance(loader, _WholeIterable):
        return loader
    if not isinstance(loader, DataLoader):
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise TypeError(f"shard_loader takes a DataLoader or another iterable, not {type(loader).__name__}")
        return _WholeIterable(loader)
    return _rank_loader(loader, gather)


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the loader's sampler, batch sampler and dataset the epoch, and start this rank's augmentation stream for it.

    Args:
        loader: what `shard_loader` returned. Parts without a `set_epoch` method aren't told.
        epoch: the epoch that begins, from 0.
    """
    told: list[Any] = []
    parts: list[Any] = [getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset")]
    for part in parts:
        part = part.inner if isinstance(part, samplers.RankBatchSampler) else part
        if hasattr(part, "set_epoch") and not any(part is other for other in told):
            part.set_epoch(epoch)
            told.append(part)
    if world.world_size() > 1:
        streams.loading.restart(epoch)


def _rank_loader(loader: DataLoader[Any], gather: bool) -> DataLoader[Any]:
    original = type(loader)
    kind: Any = type(original.__name__, (_RankLoader, original), {"__module__": original.__module__})
    new = kind.__new__(kind)
    new.__dict__.update(loader.__dict__)
    new._take_over(loader, gather)
    result: DataLoader[Any] = new
    return result


class _RankLoader(DataLoader[Any]):
    """A copy of a loader that loads this rank's part. Mixed into the original's class."""

    _original: DataLoader[Any]
    _gather: bool
    _draws: bool | None
    """Whether loading samples draws random numbers in this process; None before the first batch."""
    whole: bool
    """Whether the script gets whole batches, rather than this rank's shards."""

    def _take_over(self, loader: DataLoader[Any], gather: bool) -> None:
        self._original, self._gather = loader, gather
        self._iterator = None
        self._exchange = Exchange()
        self._split = _why_not_split(loader) is None
        self._reading: shards.Reading | None = None
        self._draws = None
        if self._split:
            # Through __dict__: a DataLoader doesn't let its batch sampler be set.
            self.__dict__["batch_sampler"] = samplers.RankBatchSampler(loader.batch_sampler, placeholders=True)
            self.num_workers = -(-loader.num_workers // world.current().local_world_size)
            self.worker_init_fn = _RankSeeds(world.rank(), loader.worker_init_fn)
            if hasattr(self, "in_order"):
                self.in_order = True  # the ranks' chunks have to belong together
        self._decide()
        if self.whole and not gather:
            why = _why_not_split(loader) or "some batch is too small, or of unknown size"
            _log.info("%s gives every rank whole batches: %s", type(self).__name__, why)

    def _decide(self) -> None:
        inner = self._original.batch_sampler
        self.whole = self._gather or not self._split or not samplers.splits_evenly_enough(inner)
        if self._split:
            self.__dict__["batch_sampler"].placeholders = self.whole

    @property
    def current(self) -> shards.Batch | None:
        """The batch that the script got last; None before the first one."""
        return self._reading.batch if self._reading is not None else None

    def __iter__(self) -> Any:
        streams.adopt_main_state(_generators(self._original))
        self._decide()
        self._reading = shards.Reading()
        batches: Any = super().__iter__()
        if not self._split:
            return _Batches(batches, self._reading, batches.__next__, lambda batch: (batch, _whole(batch)))
        cuts = self.__dict__["batch_sampler"].latest
        fetch = batches.__next__ if self.num_workers else lambda: self._fetch(batches)
        return _Batches(batches, self._reading, fetch, lambda batch: self._finish(batch, cuts))

    def _fetch(self, batches: Iterator[Any]) -> Any:
        """The next batch, loaded in this process.

        All ranks load all of the first one, with the shared stream. Only if that drew no random numbers they share
        the work from then on: else the shared stream would no longer be the original's.
        """
        sampler: samplers.RankBatchSampler = self.__dict__["batch_sampler"]
        sampler.splits = self._draws is False
        if sampler.splits:
            with streams.loading:
                return next(batches)
        if self._draws:
            return next(batches)
        sampler.watched = []
        try:
            batch = next(batches)
            self._draws = not streams.alike(sampler.watched[-1], streams.capture())
        finally:
            sampler.watched = None
        if self._draws:
            _log.info("%s loads every sample on every rank: its dataset draws random numbers", type(self).__name__)
        return batch

    def _finish(self, batch: Any, cuts: deque[samplers.Cut]) -> tuple[Any, shards.Batch]:
        cut = cuts.popleft()
        if cut.by_all and cut.total is not None:
            batch = _own_rows(batch, cut)
        if self.whole:
            # Also where every rank has loaded all of it: a dataset may have random numbers that no rank shares.
            batch = _gather_batch(batch, self._exchange, cut)
            if self.pin_memory and torch.cuda.is_available():
                batch = nesting.map_tensors(lambda t: t.pin_memory() if t.device.type == "cpu" else t, batch)
        return batch, shards.Batch(cut.total, self.whole)


def _why_not_split(loader: DataLoader[Any]) -> str | None:
    """Why the ranks can't load a batch together; None if they can."""
    kind = type(loader)
    if kind.__iter__ is not DataLoader.__iter__ or kind._get_iterator is not DataLoader._get_iterator:
        return f"{kind.__name__} has an iterator of its own"
    if isinstance(loader.dataset, IterableDataset):
        return "its dataset is an IterableDataset"
    if loader.batch_sampler is None:
        return "it has batch_size=None"
    if loader.collate_fn is not default_collate:
        return "it has a collate_fn of its own"
    if any(fn.__module__ != default_collate.__module__ for fn in default_collate_fn_map.values()):
        return "default_collate was extended"
    return None


def _generators(loader: DataLoader[Any]) -> list[torch.Generator]:
    parts = (loader, loader.sampler, loader.batch_sampler)
    found = [getattr(part, "generator", None) for part in parts]
    unique = {id(one): one for one in found if isinstance(one, torch.Generator) and one.device.type == "cpu"}
    return list(unique.values())


class _RankSeeds:
    """A `worker_init_fn`: gives this rank's workers seeds of their own, then runs the script's function."""

    def __init__(self, rank: int, then: Callable[[int], None] | None) -> None:
        self.rank = rank
        self.then = then

    def __call__(self, worker_id: int) -> None:
        info = get_worker_info()
        assert info is not None
        seed = (info.seed + (self.rank + 1) * 0x9E3779B97F4A7C15) % 2**63  # spreads ranks far beyond worker ids
        object.__setattr__(info, "seed", seed)  # scripts seed their own generators from it; it is read-only
        streams.seed_generators(seed)
        if self.then is not None:
            self.then(worker_id)


class _Batches:
    """An iterator over a loader that tells the runtime which batch is at hand."""

    def __init__(
        self,
        inner: Iterator[Any],
        reading: shards.Reading,
        fetch: Callable[[], Any],
        finish: Callable[[Any], tuple[Any, shards.Batch]],
    ) -> None:
        self._inner = inner
        self._reading = reading
        self._fetch = fetch
        self._finish = finish

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        try:
            data, batch = self._finish(self._fetch())
        except BaseException:
            self._reading.close()
            raise
        self._reading.show(batch)
        return data

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __del__(self) -> None:
        reading = self.__dict__.get("_reading")
        if reading is not None and reading.open:
            reading.drop()


class _WholeIterable:
    """Something that isn't a `DataLoader` but yields the same batches on every rank."""

    whole = True

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.current: shards.Batch | None = None

    def __iter__(self) -> _Batches:
        streams.adopt_main_state()
        batches = iter(self._inner)
        return _Batches(batches, shards.Reading(), batches.__next__, self._finish)

    def _finish(self, batch: Any) -> tuple[Any, shards.Batch]:
        self.current = _whole(batch)
        return batch, self.current

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: Any) -> Any:
        return self._inner[index]

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)


def _whole(batch: Any) -> shards.Batch:
    return shards.Batch(next((t.size(0) for t in nesting.tensors(batch) if t.dim()), None), whole=True)


def _is_column(value: Any) -> bool:
    """Whether this is what `default_collate` makes of one field: a tensor, or the strings as they are."""
    if isinstance(value, (list, tuple)) and not nesting.is_namedtuple(value):
        return bool(value) and all(isinstance(item, (str, bytes)) for item in value)
    return isinstance(value, torch.Tensor)


def _own_rows(batch: Any, cut: samplers.Cut) -> Any:
    """This rank's rows of a whole batch that the default collate function has made; one row if it has none."""
    sizes = nesting.chunk_sizes(cut.total or 0, world.world_size())
    start = sum(sizes[: world.rank()])
    rows = slice(start, start + sizes[world.rank()]) if sizes[world.rank()] else slice(0, 1)
    return nesting.map_leaves(
        lambda column: column[rows].clone() if isinstance(column, torch.Tensor) else column[rows], batch, _is_column
    )


def _gather_batch(batch: Any, exchange: Exchange, cut: samplers.Cut) -> Any:
    """The whole batch from the ranks' chunks, as the default collate function would have made it."""
    columns = nesting.leaves(batch, _is_column)
    tensors = [column for column in columns if isinstance(column, torch.Tensor)]
    others = [column for column in columns if not isinstance(column, torch.Tensor)]
    device = tensors[0].device if tensors else torch.device("cpu")
    parts = exchange(Part(tensors, others), device, cut)[: cut.chunks]
    gathered = iter([concatenate(column, 0).to(device) for column in zip(*(part.tensors for part in parts))])
    joined = iter([_join(column) for column in zip(*(part.note for part in parts))])
    return nesting.map_leaves(
        lambda leaf: next(gathered) if isinstance(leaf, torch.Tensor) else next(joined), batch, _is_column
    )


def _join(column: tuple[Any, ...]) -> Any:
    first = column[0]
    return type(first)(item for part in column for item in part) if _is_column(first) else first
