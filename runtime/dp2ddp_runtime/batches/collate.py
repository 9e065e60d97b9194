"""Batches as columns with a row for each sample, as the default `collate_fn` makes them; whole ones from this rank's.

Where a rank fails to load its rows, all have to know before the batch is handed out: the script may well go on with the
next one. So they meet at each batch: no message that travels with a later exchange is early enough. (Measured with two
ranks on two busy cores: 1.3 ms, of which 0.6 ms are the all-gather.)
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
import traceback
import zlib
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Callable, NamedTuple

import torch

from ..base import codec, nesting, voice, world
from ..ranks import rng
from ..ranks.exchange import Divergence, Piggybacked, exchange, piggybacked
from ..ranks.file_sync import PeerError
from . import fewer, kept, samplers
from .apart import Column, Constant, Items, Marked, described
from .deferred import Deferred, defer, is_small


def is_column(value: Any) -> bool:
    """Whether this is what `default_collate` makes of one field: a tensor, or the strings as they are. Or a mark."""
    return isinstance(value, (torch.Tensor, *Marked)) or _is_text(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(item, (str, bytes)) for item in value)


def own_rows(batch: Any, sizes: Sequence[int]) -> Any:
    """This rank's rows of a whole batch; rank 0's if it has none."""
    rows = nesting.own_chunk(sizes)

    def cut(column: Any) -> Any:
        if isinstance(column, Column):
            own = column.rows.narrow(column.dim, rows.start, rows.stop - rows.start)
            return column._replace(rows=own.clone())
        if isinstance(column, Items):
            return column._replace(items=column.items[rows])
        if isinstance(column, torch.Tensor):
            return column[rows].clone()
        return column if isinstance(column, Constant) else column[rows]

    return nesting.map_leaves(cut, batch, is_column)


def fitted(rows: Any, shapes: Sequence[Any]) -> Any:
    """Rows that only stand in, on a rank that has none of a batch: in the size of the samples that other ranks have."""
    left = iter(shapes)

    def fit(column: Any) -> Any:
        if not isinstance(column, torch.Tensor) or column.dim() == 0:
            return column
        shape = [len(column), *itertools.islice(left, column.dim() - 1)]
        count = math.prod(shape)
        values = column.flatten() if column.numel() else column.new_zeros(1)
        return values.repeat(-(-count // len(values)))[:count].view(shape)

    return nesting.map_leaves(fit, rows, is_column)


def travelling(share: Any) -> list[Any]:
    """The columns of strings and other items. They can't wait to be looked at: they are gathered with the batch."""
    columns = nesting.leaves(share, is_column)
    return [
        each.items if isinstance(each, Items) else each for each in columns if isinstance(each, Items) or _is_text(each)
    ]


def as_whole(share: Any, sizes: Sequence[int], parts: Sequence[Sequence[Any]]) -> Any:
    """The whole batch: deferred tensors of this rank's share, and all ranks' strings and items (`travelling`)."""
    columns = iter(zip(*(part for part, size in zip(parts, sizes) if size)))

    def whole(column: Any) -> Any:
        if isinstance(column, Column):
            return defer(column.rows, sizes, column.dim)
        if isinstance(column, Constant):
            return column.value
        if isinstance(column, torch.Tensor):
            return defer(column, sizes)
        if isinstance(column, Items):
            return _joined(type(column.items), next(columns))
        return _joined(type(column), next(columns)) if _is_text(column) else column

    return nesting.map_leaves(whole, share, is_column)


def _joined(kind: Any, parts: Sequence[Any]) -> Any:
    return rng.np.concatenate(parts) if hasattr(parts[0], "dtype") else kind(itertools.chain(*parts))


def told(error: Exception) -> list[Any]:
    """An exception as what can be sent, and its traceback."""
    return [codec.told_error(error), "".join(traceback.format_exception(type(error), error, error.__traceback__))]


class Share(NamedTuple):
    """What this rank has loaded of a batch: nothing if it has failed."""

    rows: Any
    sizes: list[int]
    changes: kept.Changes

    @property
    def shapes(self) -> list[Any]:
        """Its samples' sizes; what is told of a script's own batch."""
        marks = [described(each) for each in nesting.leaves(self.rows, is_column) if isinstance(each, Marked)]
        return marks or [size for column in nesting.tensors(self.rows) for size in column.shape[1:]]


#: The same on all ranks, which go through the same loaders in the same order.
_iterations = itertools.count()


class RankIterator(samplers.Delegate):
    """A sharded loader's own iterator, of whose rows it makes whole batches."""

    def __init__(self, inner: Iterator[Any], loader: Any) -> None:
        super().__init__(inner)
        self._loader, self._name = loader, type(loader).__name__
        self._sampler: samplers.RankBatchSampler = loader.batch_sampler
        self._sizes, self._drawn = self._sampler.sizes, self._sampler.latest
        self.number, self._batches = next(_iterations), itertools.count()
        self.is_in_thread = False
        self._whole: deque[Any] = deque()  # batches that were fetched before the other ranks ended
        self._piggybacked: dict[Hashable, Piggybacked] = {}
        self._failed: list[Exception] = []  # of the latest batch; popped, as a local name would keep this alive with it
        self._failures = 0
        fewer.reading.add(self)
        if not loader.num_workers:
            loader._watch = loader._watch or kept.Watch(loader.dataset)
            self._sampler.drawn = loader._watch.begin

    def __iter__(self) -> RankIterator:
        return self

    def __next__(self) -> Any:
        if self._whole:
            return self._whole.popleft()
        if world.world_size() == 1:
            return next(self._inner)
        for old in self._piggybacked:
            piggybacked.pop(old, None)  # of the batch before, and still not looked at
        self._piggybacked, number = {}, next(self._batches)
        share = self._load()
        if threading.current_thread() is threading.main_thread():
            share, parts = self._meet(share, is_first=number == 0)
        else:
            self.is_in_thread = True
            parts = self._tell_later(share, number)
        batch = as_whole(share.rows, share.sizes, parts)
        small = [each for each in nesting.tensors(batch) if isinstance(each, Deferred) and is_small(each)]
        self._piggybacked.update(((self.number, number, i), each.as_piggybacked()) for i, each in enumerate(small))
        piggybacked.update(self._piggybacked)
        return batch

    def fetch_what_is_on_its_way(self) -> None:
        """Fetch the batches that were drawn, of which each rank loads its rows. A collective."""
        with self._drawn.held():
            self._whole.extend([*self])

    def go_on_alone(self) -> None:
        """Load all rows of what hasn't been drawn, as the only rank that goes on."""
        self._inner = self._loader._begin_rest(self._drawn)

    def _meet(self, share: Share, is_first: bool) -> tuple[Share, list[Any]]:
        """Agree on a batch: the ranks' strings, with this rank's share, which is another one if all load it anew.

        Raises what the first rank raised that can't load it.
        """
        errors = [told(error) for error in self._failed]
        ranks = exchange(f"a batch of a {self._name}", [errors, travelling(share.rows), share.shapes, share.changes])
        failed, parts, shapes, changes = map(list, zip(*ranks))
        if self._take_notice(kept.not_apart(changes), is_first, any(failed)):
            return self._meet(self._load(), False)
        self._drawn.forget()
        for rank, sent in enumerate(failed):
            if sent:
                if rank == world.rank():
                    raise self._failed.pop()
                again, trace = sent[0]
                raise codec.error_again(*again) from PeerError(f"it was raised on rank {rank}:\n{trace}")
        theirs = [shape for shape, size in zip(shapes, share.sizes) if size] or shapes
        _check_shapes(self._name, theirs)
        if theirs[0] != shapes[world.rank()]:
            share = share._replace(rows=fitted(share.rows, theirs[0]))
        return share, parts

    def _tell_later(self, share: Share, number: int) -> list[Any]:
        """In a thread that reads ahead, where ranks can't meet: tell the others by what they exchange next."""
        self._failures += len(self._failed)
        failures = torch.tensor(self._failures)
        piggybacked[self.number, "failures"] = Piggybacked(failures, functools.partial(_hear_failures, self._name))
        if self._failed:
            raise self._failed.pop()
        if self._is_trial:
            self._loader._decide(next(iter(share.changes), ""))
            share = share._replace(changes={})
        mark = zlib.crc32(repr(share.changes).encode()) if share.changes else 0
        shapes = [zlib.crc32(each.encode()) if isinstance(each, str) else each for each in share.shapes]
        hear = functools.partial(_hear, self._name, self._loader._warn_of, next(iter(share.changes), "state"))
        self._piggybacked[self.number, number, -1] = Piggybacked(torch.tensor([mark, *shapes]), hear)
        found = travelling(share.rows)
        return exchange("a batch's strings and items", found) if found else []

    @property
    def _is_trial(self) -> bool:
        """Whether this is the batch that tells whether ranks can share the work. Without workers."""
        return not self._loader.num_workers and self._loader._moves is None

    def _take_notice(self, moves: str, is_first: bool, failed: bool) -> bool:
        """Of what samples move in the data set. Returns whether the batch has to be loaded once more, by all ranks."""
        if self._is_trial:
            if not failed:
                self._loader._decide(moves)
        elif moves and is_first and self._loader.num_workers:
            self._inner = None  # its workers end
            self._inner, self._sizes = self._loader._begin_whole(self._drawn), self._sampler.sizes
            self._loader._decide(moves)
            return True
        elif moves:
            self._loader._warn_of(moves)
        return False

    def _load(self) -> Share:
        """This rank's rows of the next batch, and what that has changed in the data set.

        Without workers all ranks load all of the first one, with the shared stream. Only if that drew no random numbers
        and left nothing behind they share the work from then on: else the shared stream, or what the script finds in
        its data set, would no longer be the original's.
        """
        loader, splits = self._loader, self._sampler.splits
        self._failed.clear()
        if loader.num_workers or not splits:
            share = self._take()
        else:
            with rng.loading, voice.heard():  # its own samples, which nobody else loads
                share = self._take()
        if not loader.num_workers and not loader._moves:
            drew = rng.loading.drew if splits else loader._watch.drew
            changes = {**loader._watch.changes(), **({kept.GLOBAL: 0} if drew else {})}
            grew = self._is_trial and loader._watch.grew
            share = share._replace(changes=changes or ({kept.GROWS: 0} if grew else {}))
        if splits or self._failed:
            return share
        return share._replace(rows=own_rows(share.rows, share.sizes))

    def _take(self) -> Share:
        """The loader's next batch. One that can't be loaded is passed over, as the loader does."""
        try:
            data = next(self._inner)
        except Exception as error:
            is_end = isinstance(error, StopIteration) and not self._sizes
            if is_end:
                fewer.reading.discard(self)
                self._loader._contents.end()
            if is_end or isinstance(error, Divergence):
                raise
            if self._sizes:
                self._sizes.popleft()
            self._failed.append(error)
            return Share(None, [], {})
        data, changes = data if isinstance(data, kept.Fetched) else (data, {})
        return Share(data, self._sizes.popleft(), changes)


def _check_shapes(name: str, shapes: Sequence[list[Any]]) -> None:
    """Of the samples in a loader's batch, of all ranks that have some."""
    if isinstance(next(iter(shapes[0]), None), str):
        for each in zip(*shapes):
            if len(set(each)) > 1:
                raise Divergence(
                    f"the rows of a {name}'s batch don't stay apart, as rows=True says: "
                    + "; ".join(f"on rank {rank} {text}" for rank, text in enumerate(each))
                    + ". Leave out rows=True: then every rank loads whole batches, as the original does"
                )
    if any(shapes[0] != each for each in shapes):
        told = ", ".join(map(str, shapes))
        raise Divergence(
            f"the samples of a {name}'s batch have other shapes on other ranks ({told}): the dataset seems to change "
            "their size as it goes. With a collate_fn of your own (be it `lambda samples: default_collate(samples)`) "
            "every rank loads whole batches, as the original does"
        )


# (No methods: what travels must not keep an iterator alive, and its workers.)
def _hear_failures(name: str, failures: Sequence[torch.Tensor]) -> None:
    ranks = [rank for rank, count in enumerate(failures) if count]
    if ranks:
        raise Divergence(
            f"rank {ranks[0]} could not load a batch of a {name} in a thread of the script's. Where the script goes on "
            "with the next batch, the ranks can do so together only if the main thread reads them"
        )


def _hear(name: str, warn_of: Callable[[str], None], what: str, notes: Sequence[torch.Tensor]) -> None:
    marks, shapes = zip(*((number, shape) for number, *shape in (note.tolist() for note in notes)))
    moved = [mark for mark in marks if mark]
    if moved and len(set(moved)) < len(marks):
        warn_of(what)
    _check_shapes(name, shapes)
