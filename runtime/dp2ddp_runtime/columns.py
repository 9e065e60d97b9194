"""What the default `collate_fn` makes of a batch: columns with a row for each sample; whole ones from shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from . import journal, nesting, samplers, world
from .exchange import Exchange, Pending
from .outputs import concatenate
from .payload import Part


def is_column(value: Any) -> bool:
    """Whether this is what `default_collate` makes of one field: a tensor, or the strings as they are."""
    if isinstance(value, (list, tuple)) and not nesting.is_namedtuple(value):
        return bool(value) and all(isinstance(item, (str, bytes)) for item in value)
    return isinstance(value, torch.Tensor)


def own_rows(batch: Any, cut: samplers.Cut) -> Any:
    """This rank's rows of a whole batch; one row if it has none; all if the batch can't be cut."""
    if cut.total is None:
        return batch
    sizes = nesting.chunk_sizes(cut.total, world.world_size())
    start = sum(sizes[: world.rank()])
    rows = slice(start, start + sizes[world.rank()]) if sizes[world.rank()] else slice(0, 1)
    return nesting.map_leaves(
        lambda column: column[rows].clone() if isinstance(column, torch.Tensor) else column[rows], batch, is_column
    )


class Gathered(NamedTuple):
    """A whole batch, and what each rank told along with its share."""

    batch: Any
    told: list[Any]


class _Note(NamedTuple):
    others: list[Any] | None  # the columns that aren't tensors
    told: Any
    failure: str | None = None  # why this rank has no share


class Gathering:
    """A whole batch that is being put together from the ranks' shares, as the default collate function would.

    Args:
        share: this rank's rows. All ranks need the same nesting.
        cut: how the batch was cut.
        exchange: what carries it.
        told: something plain for the other ranks: None, bools, numbers, strings, tuples of these.
    """

    def __init__(self, share: Any, cut: samplers.Cut, exchange: Exchange, told: Any = None) -> None:
        columns = nesting.leaves(share, is_column)
        tensors = [column for column in columns if isinstance(column, torch.Tensor)]
        others = [column for column in columns if not isinstance(column, torch.Tensor)] or None
        self._share, self._chunks = share, cut.chunks
        self._device = tensors[0].device if tensors else torch.device("cpu")
        self._pending = exchange.start(Part(tensors, _Note(others, told)), self._device, cut)

    def wait(self) -> Gathered:
        """Put it together. To be called once.

        Raises:
            PeerError: another rank has no share, because its loading failed.
        """
        parts = self._pending.wait()
        _check(parts)
        shares = parts[: self._chunks]
        tensors = iter([concatenate(column, 0).to(self._device) for column in zip(*(part.tensors for part in shares))])
        others = iter([_join(column) for column in zip(*(part.note.others or () for part in shares))])
        batch = nesting.map_leaves(
            lambda leaf: next(tensors) if isinstance(leaf, torch.Tensor) else next(others), self._share, is_column
        )
        return Gathered(batch, [part.note.told for part in parts])


def start_without(error: Exception, cut: samplers.Cut, exchange: Exchange) -> Pending:
    """Take part in the gathering of a batch of which this rank could not load its share."""
    return exchange.start(Part([], _Note(None, None, f"{type(error).__name__}: {error}")), torch.device("cpu"), cut)


def _check(parts: Sequence[Part]) -> None:
    """Raise `PeerError` if a rank has no share."""
    for rank, part in enumerate(parts):
        if part.note.failure is not None:
            raise journal.PeerError(f"rank {rank} could not load its part of a batch: {part.note.failure}")


def _join(column: tuple[Any, ...]) -> Any:
    first = column[0]
    return type(first)(item for part in column for item in part) if is_column(first) else first
