"""What the default `collate_fn` makes of a batch: columns with a row for each sample; whole ones from this rank's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import nesting
from .deferred import defer
from .exchange import exchange


def is_column(value: Any) -> bool:
    """Whether this is what `default_collate` makes of one field: a tensor, or the strings as they are."""
    return isinstance(value, torch.Tensor) or _is_text(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(item, (str, bytes)) for item in value)


def own_rows(batch: Any, sizes: Sequence[int]) -> Any:
    """This rank's rows of a whole batch; rank 0's if it has none."""
    rows = nesting.own_chunk(sizes)
    return nesting.map_leaves(
        lambda column: column[rows].clone() if isinstance(column, torch.Tensor) else column[rows], batch, is_column
    )


def as_whole(share: Any, sizes: Sequence[int]) -> Any:
    """The whole batch: deferred tensors, and all ranks' strings.

    Args:
        share: this rank's rows, or rank 0's.
        sizes: each rank's number of rows.
    """
    texts = [column for column in nesting.leaves(share, is_column) if _is_text(column)]
    # Strings can't wait to be looked at: they are gathered with the batch.
    parts = exchange("a batch's strings", texts) if texts else []
    columns = iter(zip(*(part for part, size in zip(parts, sizes) if size)))

    def whole(column: Any) -> Any:
        if isinstance(column, torch.Tensor):
            return defer(column, sizes)
        return type(column)(item for part in next(columns) for item in part) if _is_text(column) else column

    return nesting.map_leaves(whole, share, is_column)
