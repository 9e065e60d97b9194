"""Loaders of which each rank loads its rows of every batch."""

from __future__ import annotations

import functools
import logging
import sys
import warnings
import weakref
from typing import Any, Callable, NoReturn

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from ..base import voice, world
from ..ranks import collectives, rng
from ..ranks.exchange import piggybacked
from . import apart, collate, contents, kept, samplers

_log = logging.getLogger("dp2ddp_runtime")  # at level DEBUG, if that is asked of this logger: scripts log to files
_log.setLevel(_log.level or logging.INFO)


def shard_loader(loader: Any, rows: bool = False) -> Any:
    """The loader's equivalent for this rank. With a single rank, the loader itself.

    The script gets whole batches, on every rank, as a model from `wrap_model` takes them; the batches, their order,
    their number (`len`) and `batch_size` stay the original's. Their tensors are deferred (`deferred.Deferred`): each
    rank has loaded and holds its rows alone, in `torch.chunk`'s sizes, and the rest comes where the script looks.

    Every rank loads whole batches where rows can't be told apart: with a `collate_fn` of the script's (unless `rows`
    says otherwise), a loader class of its own, an `IterableDataset`, or `batch_size=None`. Without workers, so it does
    for a dataset that draws random numbers, as what it draws decides on the shuffles that follow; with workers, each
    rank's have seeds of their own.
    And so it does, with all of the original's workers, for a dataset that keeps something from one sample to the next,
    such as a generator or a counter (`kept`), which the first batch tells.

    In the main thread the ranks meet at each batch: where one of them can't load its rows, all raise its exception.

    Args:
        loader: a `DataLoader`; or any other iterable, which then has to yield the same batches on every rank.
        rows: whether rows stay apart in the loader's `collate_fn`: what it makes of some samples, and of others, one
            behind the other, is what it makes of all. It is checked in the first batches (`apart`), and raises
            `ValueError` there if it isn't so. Tensors with a row for each sample are deferred, along whichever
            dimension the rows lie; lists with an item for each sample (boxes) travel with the batch.

    Raises:
        TypeError: `loader` isn't iterable.
        ValueError: with `rows`, `loader` is one whose rows can't be told apart for another reason.
    """
    if world.world_size() == 1 or isinstance(loader, (_RankLoader, _SameOnAllRanks)):
        return loader
    if not isinstance(loader, DataLoader):
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise TypeError(f"shard_loader takes a DataLoader or another iterable, not {type(loader).__name__}")
        if rows:
            raise ValueError(f"shard_loader(loader, rows=True) takes a DataLoader, not {type(loader).__name__}")
        return _SameOnAllRanks(loader)
    # One for each loader: where it is sharded in every epoch, its persistent workers go on living.
    known = loader.__dict__.get("_sharded")
    if known is None or known.original != id(loader):  # a shallow copy has its original's
        known = loader.__dict__["_sharded"] = _Sharded(id(loader), _rank_loader(loader, rows))
    return known.loader


class _Sharded:
    """What a loader was sharded to, kept with it, but not in its pickles and deep copies."""

    def __init__(self, original: int, loader: Any) -> None:
        self.original, self.loader = original, loader

    def __reduce__(self) -> Any:
        return type(None), ()


class _SameOnAllRanks(samplers.Delegate):
    """Something that isn't a `DataLoader` and yields the same batches on every rank."""

    def __iter__(self) -> Any:
        rng.adopt_main_state()
        return iter(self._inner)

    def __getitem__(self, index: Any) -> Any:
        return self._inner[index]


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the loader's sampler, batch sampler and dataset the epoch, and start this rank's augmentation stream for it.

    Args:
        loader: what `shard_loader` returned. Parts without a `set_epoch` method aren't told.
        epoch: the epoch that begins, from 0.
    """
    for name in ("sampler", "batch_sampler", "dataset"):
        part: Any = getattr(loader, name, None)
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)
    if world.world_size() > 1:
        rng.loading.restart(epoch)


def _rank_loader(loader: DataLoader[Any], rows: bool) -> Any:
    original = type(loader)
    kind: Any = type(original.__name__, (_RankLoader, original), {"__module__": original.__module__})
    new = kind.__new__(kind)
    new.__dict__.update(loader.__dict__, _iterator=None, _contents=contents.Contents(loader.dataset, original.__name__))
    reason = _why_not_split(loader, rows)
    new._rows = rows and loader.collate_fn is not default_collate
    if reason and rows:
        raise ValueError(f"shard_loader(loader, rows=True): {original.__name__} loads whole batches, as {reason}")
    if reason:
        _log.debug("%s loads whole batches on every rank: %s", original.__name__, reason)
    else:
        new.split()
    return new


def _why_not_split(loader: DataLoader[Any], rows: bool = False) -> str | None:
    """Why the ranks can't load a batch together; None if they can. `rows`: whether its rows are said to stay apart."""
    kind = type(loader)
    if kind.__iter__ is not DataLoader.__iter__ or kind._get_iterator is not DataLoader._get_iterator:
        return f"{kind.__name__} has an iterator of its own"
    if isinstance(loader.dataset, IterableDataset):
        return "its dataset is an IterableDataset"
    if loader.batch_sampler is None:
        return "it has batch_size=None"
    if rows:
        return None
    if loader.collate_fn is not default_collate:
        return "it has a collate_fn of its own"
    if any(fn.__module__ != default_collate.__module__ for fn in default_collate_fn_map.values()):
        return "default_collate was extended"
    return None


class _RankLoader(DataLoader[Any]):
    """A copy of a loader that loads this rank's rows. Mixed into the original's class."""

    #: Whether a sample moves the global generators or the dataset; None before the first batch. Of workers, only what
    #: was told is noted.
    _moves: bool | None = None
    _contents: contents.Contents  # compares what the dataset holds
    _watch: kept.Watch | None = None  # watches the dataset where there are no workers
    _rows: bool  # whether rows are said to stay apart in a `collate_fn` of the script's
    #: How many workers the original has, what they begin with, and its `collate_fn` (`apart.Collate`, with `_rows`).
    _originals: tuple[int, Any, Any]
    _seeds: Any  # the random state from which the latest pass took its workers' seeds, and the generators that they got

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} that went through ddp.shard_loader can't be pickled or copied: do that with the "
            "loader itself, and pass what comes of it through ddp.shard_loader"
        )

    def split(self) -> None:
        """Load this rank's rows from now on, rather than all."""
        if self._rows:
            self.collate_fn = apart.Collate(self.collate_fn, world.is_main())
        self._originals = self.num_workers, self.worker_init_fn, self.collate_fn
        own = -(-self.num_workers // world.current().local_world_size)
        lead = (self.num_workers - own) * (self.prefetch_factor or 0)
        # Through __dict__: a DataLoader doesn't let its batch sampler be set.
        sampler = samplers.RankBatchSampler(self.batch_sampler, splits=self.num_workers > 0, lead=lead)
        self.__dict__["batch_sampler"] = sampler
        if self.num_workers:
            self.collate_fn = kept.Watched(self.collate_fn)
        self.num_workers = own
        self.worker_init_fn = functools.partial(_seed_worker, world.rank(), world.world_size(), self.worker_init_fn)
        if hasattr(self, "in_order"):
            self.in_order = True  # the ranks' chunks have to belong together

    def __iter__(self) -> Any:
        if world.world_size() == 1:
            self._unite()
            return super().__iter__()
        piggybacked["what a data set holds"] = self._contents.begin()
        parts = (self, self.sampler, self.batch_sampler)
        found = [getattr(part, "generator", None) for part in parts]
        rng.adopt_main_state([one for one in found if isinstance(one, torch.Generator) and one.device.type == "cpu"])
        self._seeds = self._random_state() if self.num_workers else None
        batches: Any = self._begin()
        if isinstance(self.batch_sampler, samplers.RankBatchSampler):
            batches = collate.RankIterator(batches, self)
        if type(batches).__weakrefoffset__:
            weakref.finalize(batches, self._contents.end).atexit = False
        return batches

    def _unite(self) -> None:
        """Load all rows from now on, as this is the only rank that goes on (`fewer`)."""
        sampler = self.__dict__["batch_sampler"]
        if isinstance(sampler, samplers.RankBatchSampler):
            self.num_workers, self.worker_init_fn, collate_fn = self._originals
            self.collate_fn = collate_fn.original if isinstance(collate_fn, apart.Collate) else collate_fn
            self.__dict__.update(batch_sampler=sampler._inner, _iterator=None)

    def _begin(self) -> Any:
        if self.num_workers and self.__dict__.get("_iterator") is None and sys.version_info < (3, 11, 10):
            # A worker that is forked meanwhile can hang for ever: https://github.com/python/cpython/issues/112275
            collectives.let_threads_go()
        return super().__iter__()

    def _begin_whole(self, drawn: samplers.Drawn) -> Any:
        """Begin a pass (what was `drawn`) once more, and load whole batches from now on, with all workers."""
        sampler = self.__dict__["batch_sampler"]
        self.num_workers, self.worker_init_fn, self.collate_fn = self._originals
        self.__dict__["_iterator"] = None
        with sampler.again(drawn):
            now = self._random_state()
            self._restore(self._seeds)
            batches = self._begin()
            self._restore(now)
        return batches

    def _begin_rest(self, drawn: samplers.Drawn) -> Any:
        """Begin in the middle of a pass, where the other ranks have ended: with the batches that are still to come."""
        self._unite()
        own, now = self.batch_sampler, self._random_state()
        self.__dict__["batch_sampler"] = drawn
        batches: Any = self._get_iterator()
        batches._index_sampler = self.__dict__["batch_sampler"] = own
        self._restore(now)
        return batches

    def _random_state(self) -> Any:
        own = kept.generators_in([self.generator, self.dataset])
        return rng.capture(), [(each, rng.state_of(each)) for each in own]

    def _restore(self, state: Any) -> None:
        rng.restore(state[0])
        for each, own in state[1]:
            rng.set_state(each, own)

    def _decide(self, what: str) -> None:
        """After the first batch: whether every rank loads all of the others, too. `what` a sample moves."""
        self._moves = bool(what)
        self.__dict__["batch_sampler"].splits = not what
        if what in (kept.GLOBAL, kept.GROWS):
            why = "it draws random numbers" if what == kept.GLOBAL else "its data set collects something"
            _log.debug("%s loads every sample on every rank: %s", type(self).__name__, why)
        elif what and world.is_main():
            cost = f", with {self.num_workers} workers on each" if self.num_workers else ""
            warnings.warn(
                f"{type(self.dataset).__name__} changes its {what!r} with each sample that it loads: every rank loads "
                f"whole batches{cost}. Loading takes as long as in the original, however many ranks there are",
                stacklevel=5,
            )

    def _warn_of(self, what: str) -> None:
        """Something began to move after the first batch."""
        if self._moves:
            return
        self._moves = True
        done = "drew its first random number" if what == kept.GLOBAL else f"changed its {what!r} for the first time"
        advice = (
            "With num_workers=1 or more, samples have random numbers of their own in both"
            if what == kept.GLOBAL
            else "With a collate_fn of your own (be it `lambda samples: default_collate(samples)`) every rank loads "
            "whole batches, as the original does"
        )
        warnings.warn(
            f"the dataset of a {type(self).__name__} {done} after the first batch: its samples and shuffles are not "
            f"the original script's from here on. {advice}",
            stacklevel=5,
        )


def _seed_worker(rank: int, ranks: int, then: Callable[[int], None] | None, worker_id: int) -> None:
    """A `worker_init_fn`: gives this rank's workers seeds and ids of their own, then runs the script's function.

    Scripts seed their own generators from either, which must not draw the same numbers on all ranks.
    """
    voice.speak()
    info = get_worker_info()
    assert info is not None
    seed = (info.seed + (rank + 1) * 0x9E3779B97F4A7C15) % 2**63  # spreads ranks far beyond worker ids
    worker_id += rank * info.num_workers
    told = {"seed": seed, "id": worker_id, "num_workers": ranks * info.num_workers}
    for name, value in told.items():
        object.__setattr__(info, name, value)  # it is read-only
    rng.seed_generators(seed)
    if then is not None:
        then(worker_id)
    kept.watch(info.dataset)
