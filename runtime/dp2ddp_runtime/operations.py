"""Values over all ranks: for scripts that are written by hand, and for what rank 0 alone can know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .base import nesting, world
from .batches.deferred import materialize
from .ranks.exchange import exchange

_OF_INTEGERS: dict[str, Any] = {"sum": sum, "max": max, "min": min}
_OPS: dict[str, Any] = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}


def all_reduce(*values: Any, op: str = "sum") -> Any:
    """Combine each rank's values into the values over all ranks, the same on every rank. A collective.

    For values that differ between ranks. What comes from whole batches is over all ranks already.

    Args:
        *values: numbers and tensors; or tuples, lists and dicts of them.
        op: "sum", "mean", "max" or "min"; of tensors element by element.

    Returns:
        The combined value, or a tuple of them if there were several. Integers are summed exactly, floats in double
        precision. Tensors of floats keep their dtype; integers' sums are int64, their means float64.

    Raises:
        ValueError: an unknown `op`.
        TypeError: a value of another kind.
    """
    if op not in _OPS:
        raise ValueError(f"op must be one of {', '.join(_OPS)}, not {op!r}")
    if world.world_size() > 1:
        values = materialize(values)
        columns = zip(*exchange("ddp.all_reduce", nesting.leaves(values), exact=True))
        values = nesting.map_leaves(lambda leaf: _combine(leaf, next(columns), op), values)
    return values[0] if len(values) == 1 else values


def gather(value: Any) -> Any:
    """The ranks' values one after the other, the same on every rank. A collective.

    Args:
        value: tensors and lists, joined along dimension 0; also in tuples and dicts. A tensor without dimensions
            becomes a vector. Anything else becomes a list with an entry per rank.

    Returns:
        The same nesting; tensors are detached and on this rank's device.
    """
    if world.world_size() == 1:
        return value
    value = materialize(value)
    columns = zip(*exchange("ddp.gather", nesting.leaves(value, _is_rows), exact=True))
    return nesting.map_leaves(lambda leaf: _join(leaf, next(columns)), value, _is_rows)


def broadcast(value: Any) -> Any:
    """Rank 0's value, on every rank. A collective.

    For answers that may differ between ranks and decide what the script does next: whether a file is there, the time.

    Args:
        value: None, numbers, text, bytes, dates and times, paths, tensors, arrays; tuples, lists, sets, dicts of these.

    Raises:
        TypeError: it is something else.
    """
    if world.world_size() == 1:
        return value
    value = materialize(value)
    return exchange("ddp.broadcast", value if world.is_main() else None, exact=True)[0]


def _combine(own: Any, column: Sequence[Any], op: str) -> Any:
    """One value over all ranks, of what each has of it."""
    if op in _OF_INTEGERS and all(isinstance(value, int) for value in column):
        return _OF_INTEGERS[op](column)  # of any size
    each = [torch.as_tensor(value, dtype=torch.double if isinstance(value, float) else None) for value in column]
    stacked = torch.stack(each)
    is_exact = stacked.is_complex() or (op != "mean" and not stacked.is_floating_point())
    result = _OPS[op](stacked if is_exact else stacked.double(), 0)
    if not isinstance(own, torch.Tensor):
        return result.item()
    return result.to(own.device, own.dtype if own.is_floating_point() else result.dtype)


def _is_rows(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, list))


def _join(own: Any, column: Sequence[Any]) -> Any:
    if isinstance(own, torch.Tensor):
        return nesting.concatenate(column, 0).to(own.device)
    return [item for part in column for item in part] if isinstance(own, list) else list(column)
