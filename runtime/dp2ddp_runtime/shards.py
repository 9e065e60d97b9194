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
        if _readings and _readings[-1] is self:
            return
        self.close()
        self.open = True
        _readings.append(self)

    def close(self) -> None:
        """The loader is exhausted: none of its batches is at hand any more."""
        self.open = False
        _readings[:] = [reading for reading in _readings if reading is not self]

    def drop(self) -> None:
        """The iterator is gone, but its last batch may still be in use, as in `x = next(iter(loader))`."""
        self.open = False
        _readings[:] = [reading for reading in _readings if reading.open or reading is self]


_readings: list[Reading] = []  # the most recently shown batch last; at most one that is not open


def at_hand(rows: int | None) -> Batch | None:
    """The batch that inputs with `rows` rows belong to: the latest of that size, else the latest one."""
    latest = [reading.batch for reading in reversed(_readings) if reading.batch is not None]
    for batch in latest:
        if rows is not None and batch.rows == rows:
            return batch
    return next((reading.batch for reading in reversed(_readings) if reading.open), None)
