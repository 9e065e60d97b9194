"""Loaders of which each rank loads its rows of every batch."""

from __future__ import annotations

import functools
import itertools
import logging
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any, Callable

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from . import collate, nesting, rng, samplers, shards, world
from .exchange import Passenger, passengers

_log = logging.getLogger("dp2ddp_runtime")  # at level DEBUG: scripts log what is INFO to their own files


def shard_loader(loader: Any, gather: bool = False) -> Any:
    """The loader's equivalent for this rank. With a single rank, the loader itself.

    Batches, their order, their number (`len`) and `batch_size` stay the original's. With `gather` the script gets whole
    batches, on every rank: their tensors are deferred (`deferred.Deferred`), so each rank has loaded and holds its rows
    alone, in `torch.chunk`'s sizes, and the rest comes where the script looks. Without, it gets this rank's rows; whole
    batches then, too, if some batch is too small for all ranks to have a row (`loader.whole` tells).

    Every rank loads whole batches where rows can't be told apart: with a `collate_fn` or a loader class of the
    script's, an `IterableDataset`, or `batch_size=None`. Without workers, so it does for a dataset that draws random
    numbers, as what it draws decides on the shuffles that follow; with workers, each rank's have seeds of their own.

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
    # One for each loader: where it is shared out in every epoch, its persistent workers go on living.
    known: dict[bool, DataLoader[Any]] = loader.__dict__.setdefault("_rank_loaders", {})
    if gather not in known:
        known[gather] = _rank_loader(loader, gather)
    return known[gather]


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
        rng.loading.restart(epoch)


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
        self._split = _why_not_split(loader) is None
        self._reading: shards.Reading | None = None
        self._draws = None
        self._warned = False
        self._number = next(_numbers)
        if self._split:
            # Through __dict__: a DataLoader doesn't let its batch sampler be set.
            self.__dict__["batch_sampler"] = samplers.RankBatchSampler(loader.batch_sampler)
            self.num_workers = -(-loader.num_workers // world.current().local_world_size)
            self.worker_init_fn = _RankSeeds(world.rank(), loader.worker_init_fn)
            if hasattr(self, "in_order"):
                self.in_order = True  # the ranks' chunks have to belong together
        self._decide()
        if self.whole and not self._split:
            _log.debug("%s loads whole batches on every rank: %s", type(self).__name__, _why_not_split(loader))

    def _decide(self) -> None:
        self.whole = self._gather or not self._split or not samplers.splits_evenly_enough(self._original.batch_sampler)

    @property
    def current(self) -> shards.Batch | None:
        """The batch that the script got last; None before the first one."""
        return self._reading.batch if self._reading is not None else None

    def __iter__(self) -> Any:
        rng.adopt_main_state(_generators(self._original))
        self._decide()
        self._reading = shards.Reading()
        batches: Any = super().__iter__()
        return _Batches(batches, self._reading, self._reader(batches))

    def _reader(self, batches: Iterator[Any]) -> Callable[[], tuple[Any, shards.Batch]]:
        """What gives the script its next batch, and tells about it."""
        if not self._split:
            return lambda: _with_size(next(batches))
        sampler: samplers.RankBatchSampler = self.__dict__["batch_sampler"]
        cuts, number = sampler.latest, next(_iterations)
        take = functools.partial(_take if self.num_workers else self._load_share, batches, cuts)
        counter = itertools.count()
        return lambda: self._finish(*take(), (number, next(counter)))

    def _load_share(self, batches: Iterator[Any], cuts: deque[samplers.Cut]) -> tuple[Any, samplers.Cut]:
        """This rank's rows of the next batch, loaded in this process.

        All ranks load all of the first one, with the shared stream. Only if that drew no random numbers they share
        the work from then on: else the shared stream would no longer be the original's.
        """
        sampler: samplers.RankBatchSampler = self.__dict__["batch_sampler"]
        if self._draws is False:
            sampler.splits = True
            with rng.loading:
                share, cut = _take(batches, cuts)
            if not self._warned:
                passengers["drew", self._number] = Passenger(torch.tensor(rng.loading.drew), self._warn_of_draws)
            return share, cut
        states: list[rng.State] = []
        sampler.splits, sampler.watched = False, states if self._draws is None else None
        try:
            batch, cut = _take(batches, cuts)
        finally:
            sampler.watched = None
        if self._draws is None:
            self._draws = not rng.alike(states[-1], rng.capture())
            if self._draws:
                _log.debug("%s loads every sample on every rank: its dataset draws random numbers", type(self).__name__)
        return collate.own_rows(batch, cut), cut

    def _warn_of_draws(self, drew: list[torch.Tensor]) -> None:
        """Is told, by the exchange that comes next, whether loading the latest batch drew numbers on any rank."""
        if any(drew):
            self._warned = True
            warnings.warn(
                f"the dataset of a {type(self).__name__} drew its first random number after the first batch: its "
                "samples and shuffles are not the original script's from here on. With num_workers=1 or more, samples "
                "have random numbers of their own in both",
                stacklevel=2,
            )

    def _finish(self, share: Any, cut: samplers.Cut, number: tuple[int, int]) -> tuple[Any, shards.Batch]:
        if cut.sizes is None:
            return _with_size(share)
        if not self.whole and not all(cut.sizes):
            raise RuntimeError(
                f"a batch of {sum(cut.sizes)} samples leaves ranks idle, but the sampler's length promised larger "
                "ones: pass gather=True to shard_loader"
            )
        batch = collate.as_whole(share, cut.sizes, number) if self.whole else share
        return batch, shards.Batch(sum(cut.sizes), self.whole)


#: The same on all ranks, which make and read the same loaders in the same order.
_numbers, _iterations = itertools.count(), itertools.count()


def _take(batches: Iterator[Any], cuts: deque[samplers.Cut]) -> tuple[Any, samplers.Cut]:
    """The next batch and how it was cut. A batch that can't be loaded is passed over, as the loader does."""
    try:
        data = next(batches)
    except Exception:
        if cuts:
            cuts.popleft()
        raise
    return data, cuts.popleft()


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
        rng.seed_generators(seed)
        if self.then is not None:
            self.then(worker_id)


class _Batches:
    """An iterator over a loader that tells the runtime which batch is at hand.

    Args:
        inner: the loader's own iterator.
        reading: is told of each batch.
        read: gives the next batch.
    """

    def __init__(
        self, inner: Iterator[Any], reading: shards.Reading, read: Callable[[], tuple[Any, shards.Batch]]
    ) -> None:
        self._inner = inner
        self._reading = reading
        self._read = read

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        try:
            data, batch = self._read()
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

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # When Python ends it clears modules first: then there is nothing left to tell, and nobody to be told.
        reading = self.__dict__.get("_reading")
        if reading is not None and reading.open and not ending():
            reading.drop()


class _WholeIterable:
    """Something that isn't a `DataLoader` but yields the same batches on every rank."""

    whole = True

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.current: shards.Batch | None = None

    def __iter__(self) -> _Batches:
        rng.adopt_main_state()
        batches = iter(self._inner)
        return _Batches(batches, shards.Reading(), lambda: self._read(batches))

    def _read(self, batches: Iterator[Any]) -> tuple[Any, shards.Batch]:
        batch, self.current = _with_size(next(batches))
        return batch, self.current

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: Any) -> Any:
        return self._inner[index]

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)


def _with_size(batch: Any) -> tuple[Any, shards.Batch]:
    """A whole batch, and its size as far as it tells."""
    rows = next((tensor.size(0) for tensor in nesting.tensors(batch) if tensor.dim()), None)
    return batch, shards.Batch(rows, whole=True)
