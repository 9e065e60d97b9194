"""What the default `collate_fn` makes of a batch: columns with a row for each sample; whole ones from this rank's."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from . import nesting, samplers, world
from .deferred import defer, is_small
from .exchange import exchange, passengers


def is_column(value: Any) -> bool:
    """Whether this is what `default_collate` makes of one field: a tensor, or the strings as they are."""
    if isinstance(value, (list, tuple)) and not nesting.is_namedtuple(value):
        return bool(value) and all(isinstance(item, (str, bytes)) for item in value)
    return isinstance(value, torch.Tensor)


def own_rows(batch: Any, cut: samplers.Cut) -> Any:
    """This rank's rows of a whole batch, rank 0's if it has none; all if the batch can't be cut."""
    if cut.sizes is None:
        return batch
    index = world.rank() if cut.sizes[world.rank()] else 0
    start = sum(cut.sizes[:index])
    rows = slice(start, start + cut.sizes[index])
    return nesting.map_leaves(
        lambda column: column[rows].clone() if isinstance(column, torch.Tensor) else column[rows], batch, is_column
    )


def as_whole(share: Any, sizes: tuple[int, ...], number: tuple[int, int]) -> Any:
    """The whole batch: deferred tensors, and all ranks' strings.

    Args:
        share: this rank's rows, or rank 0's.
        sizes: each rank's number of rows.
        number: of the iteration over a loader, and of the batch in it.
    """
    columns = itertools.count()
    for key in [key for key in passengers if isinstance(key, tuple) and key[:2] == ("loader", number[0])]:
        passengers.pop(key, None)  # of the batch before, and still not looked at

    def defer_column(column: Any) -> Any:
        if not isinstance(column, torch.Tensor):
            return column
        whole = defer(column, sizes)
        if is_small(whole):
            passengers["loader", number[0], number[1], next(columns)] = whole.as_passenger()
        return whole

    batch = nesting.map_leaves(defer_column, share, is_column)
    texts = [
        column
        for column in nesting.leaves(share, is_column)
        if is_column(column) and not isinstance(column, torch.Tensor)
    ]
    return _with_texts(batch, texts, sizes) if texts else batch


def _with_texts(batch: Any, texts: list[Any], sizes: tuple[int, ...]) -> Any:
    """Strings can't wait to be looked at: they are gathered with the batch."""
    parts = [part.note for part, size in zip(exchange("a batch's strings", note=texts), sizes) if size]
    whole = iter([[item for part in column for item in part] for column in zip(*parts)])
    return nesting.map_leaves(
        lambda leaf: leaf if isinstance(leaf, torch.Tensor) or not is_column(leaf) else type(leaf)(next(whole)),
        batch,
        is_column,
    )
