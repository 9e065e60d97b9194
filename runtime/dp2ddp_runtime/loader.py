"""Loaders of which each rank loads its rows of every batch."""

from __future__ import annotations

import copy
import functools
import itertools
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Hashable, Iterator
from typing import Any, Callable

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from . import collate, collectives, nesting, rng, samplers, unsharded, world
from .deferred import Deferred, is_small
from .exchange import Divergence, Passenger, passengers

_log = logging.getLogger("dp2ddp_runtime")  # at level DEBUG: scripts log what is INFO to their own files


def shard_loader(loader: Any) -> Any:
    """The loader's equivalent for this rank. With a single rank, the loader itself.

    The script gets whole batches, on every rank, as a model from `wrap_model` takes them; the batches, their order,
    their number (`len`) and `batch_size` stay the original's. Their tensors are deferred (`deferred.Deferred`): each
    rank has loaded and holds its rows alone, in `torch.chunk`'s sizes, and the rest comes where the script looks.

    Every rank loads whole batches where rows can't be told apart: with a `collate_fn` or a loader class of the
    script's, an `IterableDataset`, or `batch_size=None`. Without workers, so it does for a dataset that draws random
    numbers, as what it draws decides on the shuffles that follow; with workers, each rank's have seeds of their own.

    Args:
        loader: a `DataLoader`; or any other iterable, which then has to yield the same batches on every rank.

    Raises:
        TypeError: `loader` isn't iterable.
    """
    if world.world_size() == 1 or isinstance(loader, (_RankLoader, _SameOnAllRanks)):
        return loader
    if not isinstance(loader, DataLoader):
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise TypeError(f"shard_loader takes a DataLoader or another iterable, not {type(loader).__name__}")
        return _SameOnAllRanks(loader)
    # One for each loader: where it is sharded in every epoch, its persistent workers go on living.
    known = loader.__dict__.get("_sharded")
    if known is None or known.original() is not loader:  # a shallow copy has its original's
        known = loader.__dict__["_sharded"] = unsharded.Sharded(loader, _rank_loader(loader))
    return known.loader


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


def _rank_loader(loader: DataLoader[Any]) -> Any:
    original = type(loader)
    kind: Any = type(original.__name__, (_RankLoader, original), {"__module__": original.__module__, "_kind": original})
    new = kind.__new__(kind)
    new.__dict__.update(loader.__dict__, _iterator=None)
    if new.num_workers:
        new.worker_init_fn = functools.partial(_end_with, os.getpid(), new.worker_init_fn)
    reason = _why_not_split(loader)
    if reason:
        _log.debug("%s loads whole batches on every rank: %s", original.__name__, reason)
    else:
        new.split()
    unsharded.remember(loader, new)
    return new


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


class _RankLoader(DataLoader[Any]):
    """A copy of a loader that loads this rank's rows. Mixed into the original's class."""

    _draws: bool | None = None
    """Whether loading samples draws random numbers in this process; None before the first batch."""

    _kind: type[DataLoader[Any]]
    """The original's class."""

    def __copy__(self) -> Any:
        return _rank_loader(copy.copy(unsharded.restored(self, self._kind)))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        memo[id(self)] = new = type(self).__new__(type(self))
        new.__dict__.update(_rank_loader(copy.deepcopy(unsharded.restored(self, self._kind), memo)).__dict__)
        return new

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As the original, which a file with it holds: it is opened without this runtime, too."""
        return unsharded.reduced(unsharded.restored(self, self._kind), protocol)

    def split(self) -> None:
        """Load this rank's rows from now on, rather than all."""
        # Through __dict__: a DataLoader doesn't let its batch sampler be set.
        self.__dict__["batch_sampler"] = samplers.RankBatchSampler(self.batch_sampler, splits=self.num_workers > 0)
        self.num_workers = -(-self.num_workers // world.current().local_world_size)
        self.worker_init_fn = functools.partial(_seed_worker, world.rank(), world.world_size(), self.worker_init_fn)
        if hasattr(self, "in_order"):
            self.in_order = True  # the ranks' chunks have to belong together

    def __iter__(self) -> Any:
        parts = (self, self.sampler, self.batch_sampler)
        found = [getattr(part, "generator", None) for part in parts]
        rng.adopt_main_state([one for one in found if isinstance(one, torch.Generator) and one.device.type == "cpu"])
        if self.num_workers and self.__dict__.get("_iterator") is None and sys.version_info < (3, 11, 10):
            # A worker that is forked meanwhile can hang for ever: https://github.com/python/cpython/issues/112275
            collectives.let_threads_go()
        batches: Any = super().__iter__()
        return _RankIterator(batches, self) if isinstance(self.batch_sampler, samplers.RankBatchSampler) else batches

    def warn_of_draws(self, drew: list[torch.Tensor]) -> None:
        """Is told, by the exchange that comes next, whether loading the latest batch drew numbers on any rank."""
        if any(drew):
            self._draws = True
            warnings.warn(
                f"the dataset of a {type(self).__name__} drew its first random number after the first batch: its "
                "samples and shuffles are not the original script's from here on. With num_workers=1 or more, samples "
                "have random numbers of their own in both",
                stacklevel=2,
            )


def _end_with(rank: int, then: Callable[[int], None] | None, worker_id: int) -> None:
    """A `worker_init_fn`: lets a worker end soon after its rank (a process id) was killed; torch's looks every 5 s.

    Ctrl-C is the rank's: it goes on with its worker until the ranks handle that together.
    """

    def watch() -> None:
        while os.getppid() == rank:
            time.sleep(0.5)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()
    if then is not None:
        then(worker_id)


def _seed_worker(rank: int, ranks: int, then: Callable[[int], None] | None, worker_id: int) -> None:
    """A `worker_init_fn`: gives this rank's workers seeds and ids of their own, then runs the script's function.

    Scripts seed their own generators from either, which must not draw the same numbers on all ranks.
    """
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


#: The same on all ranks, which go through the same loaders in the same order.
_iterations = itertools.count()


class _RankIterator(samplers.Delegate):
    """A loader's own iterator, of whose rows it makes whole batches."""

    def __init__(self, inner: Iterator[Any], loader: _RankLoader) -> None:
        super().__init__(inner)
        self._loader = loader
        self._sampler: samplers.RankBatchSampler = loader.__dict__["batch_sampler"]
        self._sizes = self._sampler.sizes
        self._iteration, self._batches = next(_iterations), itertools.count()
        self._boarded: dict[Hashable, Passenger] = {}

    def __iter__(self) -> _RankIterator:
        return self

    def __next__(self) -> Any:
        rows, sizes = self._take() if self._loader.num_workers else self._load()
        batch, number = collate.as_whole(rows, sizes), next(self._batches)
        for old in self._boarded:
            passengers.pop(old, None)  # of the batch before, and still not looked at
        columns = [each for each in nesting.tensors(batch) if isinstance(each, Deferred)]
        shapes = torch.tensor([size for each in columns for size in each.rows.shape[1:]])
        small = [each for each in columns if is_small(each)]
        self._boarded = {
            (self._iteration, number, -1): Passenger(
                shapes, functools.partial(_check_shapes, type(self._loader).__name__)
            )
        }
        self._boarded.update({(self._iteration, number, i): each.as_passenger() for i, each in enumerate(small)})
        passengers.update(self._boarded)
        return batch

    def _load(self) -> tuple[Any, list[int]]:
        """This rank's rows of the next batch, and how many each rank has. Without workers.

        All ranks load all of the first one, with the shared stream. Only if that drew no random numbers they share
        the work from then on: else the shared stream would no longer be the original's.
        """
        loader, sampler = self._loader, self._sampler
        if sampler.splits:
            with rng.loading:
                taken = self._take()
            if not loader._draws:
                passengers["drew", self._iteration] = Passenger(torch.tensor(rng.loading.drew), loader.warn_of_draws)
            return taken
        batch, sizes = self._take()
        if loader._draws is None:
            assert sampler.state is not None
            loader._draws = not rng.alike(sampler.state, rng.capture())
            sampler.splits = not loader._draws
            if loader._draws:
                _log.debug("%s loads every sample on every rank: it draws random numbers", type(loader).__name__)
        return collate.own_rows(batch, sizes), sizes

    def _take(self) -> tuple[Any, list[int]]:
        """The loader's next batch and its sizes. A batch that can't be loaded is passed over, as the loader does."""
        try:
            data = next(self._inner)
        except Exception:
            if self._sizes:
                self._sizes.popleft()
            raise
        return data, self._sizes.popleft()


def _check_shapes(name: str, shapes: list[torch.Tensor]) -> None:
    """Is given, by the exchange that comes next, the shapes of all ranks' samples in a loader's latest batch.

    (No method: what travels must not keep an iterator alive, and its workers.)
    """
    if any(not torch.equal(shapes[0], each) for each in shapes):
        told = ", ".join(str(each.tolist()) for each in shapes)
        raise Divergence(
            f"the samples of a {name}'s batch have other shapes on other ranks ({told}): the dataset seems to change "
            "their size as it goes. With a collate_fn of your own (be it `lambda samples: default_collate(samples)`) "
            "every rank loads whole batches, as the original does"
        )


class _SameOnAllRanks(samplers.Delegate):
    """Something that isn't a `DataLoader` and yields the same batches on every rank."""

    def __iter__(self) -> Any:
        rng.adopt_main_state()
        return iter(self._inner)

    def __getitem__(self, index: Any) -> Any:
        return self._inner[index]
