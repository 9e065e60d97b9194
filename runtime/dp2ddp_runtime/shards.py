"""The batch at hand: how many of its rows each rank has. Loaders tell it, the wrapped model and the metrics ask."""

from __future__ import annotations

from typing import NamedTuple

from . import world
from .nesting import chunk_sizes


class Batch(NamedTuple):
    """A batch that a loader has handed out."""

    total: int | None
    """The batch size over all ranks; None where only the script knows."""
    whole: bool
    """Whether every rank has the whole batch, rather than its shard."""

    @property
    def sizes(self) -> list[int]:
        """The shards' sizes, rank by rank."""
        return chunk_sizes(self.total or 0, world.world_size())

    @property
    def share(self) -> float:
        """This rank's part of the batch, 0 to 1; 1 for a whole batch."""
        return 1.0 if self.whole or not self.total else self.sizes[world.rank()] / self.total

    @property
    def even(self) -> bool:
        """Whether all ranks have equally many rows."""
        return self.whole or len(set(self.sizes)) == 1

    @property
    def rows(self) -> int | None:
        """The number of rows this rank has."""
        return self.total if self.whole else self.sizes[world.rank()]


class Reading:
    """One iteration over a loader, from its first batch to its end."""

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.open = True

    def show(self, batch: Batch) -> None:
        """`batch` is what the script gets next."""
        self.batch = batch
        if not _readings or _readings[-1] is not self:
            _readings[:] = [reading for reading in _readings if reading is not self]
            _readings.append(self)

    def close(self) -> None:
        """The loader is exhausted: none of its batches is at hand any more, nor one left behind by others."""
        self.open = False
        _readings[:] = [reading for reading in _readings if reading.open]

    def drop(self) -> None:
        """The iterator is gone, but its last batch may still be in use, as in `x = next(iter(loader))`."""
        self.open = False
        _readings[:] = [reading for reading in _readings if reading.open or reading is self]


_readings: list[Reading] = []  # the most recently shown batch last; at most one that is not open


def being_read(rows: int | None) -> Batch | None:
    """The latest batch of the loaders being iterated over; among several of its kind the one with `rows` rows."""
    if len(_readings) == 1:  # mostly
        return _readings[0].batch if _readings[0].open else None
    batches = [reading.batch for reading in reversed(_readings) if reading.open and reading.batch is not None]
    alike = [batch for batch in batches if batch.whole == batches[0].whole]
    return next((batch for batch in alike if batch.rows == rows), batches[0] if batches else None)


def at_hand(rows: int | None) -> Batch | None:
    """The batch that the model's inputs, with `rows` rows, belong to: the latest one, or one that was left behind.

    Ranks may have different numbers of rows, so these must not decide between a whole batch and a shard (then some
    ranks would wait for others) unless they do so alike on all ranks.
    """
    latest = being_read(rows)
    left = _readings[-1].batch if _readings and not _readings[-1].open else None
    if left is None:
        return latest
    if latest is None:
        return left if left.rows == rows else None
    if left.whole == latest.whole:
        return left if left.rows == rows != latest.rows else latest
    whole, shard = (left, latest) if left.whole else (latest, left)
    if whole.total is None or whole.total in shard.sizes:
        return latest
    return whole if rows == whole.total else shard
