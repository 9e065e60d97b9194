"""Numbers over all ranks from the numbers of each rank's shards."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils.data import DataLoader

from . import nesting, shards, world
from .deferred import settle
from .exchange import exchange
from .outputs import concatenate

_OPS = ("sum", "mean", "max", "min")


def all_reduce(*values: Any, op: str = "sum", over: Any = None) -> Any:
    """Combine each rank's values into the values over all ranks, the same on every rank. A collective.

    Args:
        *values: ints, floats, bools, NumPy scalars and arrays, tensors; meters, that is objects with numbers `sum` and
            `count`, and perhaps `avg` and `val`; or tuples, lists and dicts of all these. They stay as they are.
        op: "sum", "mean", "max" or "min". A meter's `sum` and `count` are always summed, its `avg` is their ratio,
            and its `val` the mean of the ranks', weighted as for "mean".
        over: the loader whose shards the values come from. If it gives every rank whole batches, the values are
            returned as they are; and a "mean" weights each rank by its rows of the current batch. Without it ranks
            weigh alike.

    Returns:
        The combined value, or a tuple of them if there were several. Integers are summed exactly, floats in double
        precision and rank order; types stay, but for a bool, whose sum is an int, and for a mean, which is a float.

    Raises:
        ValueError: an unknown `op`.
        TypeError: a value of another kind.
    """
    if op not in _OPS:
        raise ValueError(f"op must be one of {', '.join(_OPS)}, not {op!r}")
    reduced = values if _is_global(over) else _reduce(values, op, over)
    return reduced[0] if len(reduced) == 1 else tuple(reduced)


def weighted(value: Any, over: Any) -> Any:
    """`value` times this rank's part of the current batch, so that the ranks' sum is the mean over the whole batch.

    No communication. For means over a batch that the script adds up and reduces later.

    Args:
        value: the mean over this rank's shard: a number or a tensor.
        over: the loader that gave the shard. If it gives whole batches, `value` is returned as it is.
    """
    if _is_global(over):
        return value
    batch = _current(over)
    return value if batch is None else value * batch.share


def gather(value: Any, over: Any = None) -> Any:
    """The ranks' shards one after the other, the same on every rank. A collective.

    Args:
        value: tensors, NumPy arrays or lists, joined along dimension 0; also in tuples and dicts. In a list of
            tensors or arrays (one per batch) each is joined by itself, so that the list is the original's.
            A tensor without dimensions becomes a vector. Anything else becomes a list with an entry per rank.
        over: the loader whose shards they come from. If it gives whole batches, `value` is returned as it is.

    Returns:
        The same nesting; tensors are detached and on this rank's device.
    """
    if _is_global(over):
        return value
    value = settle(value)
    columns = nesting.leaves(value, _is_rows)
    tensors = [column.detach() for column in columns if isinstance(column, torch.Tensor)]
    others = [column for column in columns if not isinstance(column, torch.Tensor)]
    parts = exchange("ddp.gather", tensors, others)
    gathered = [concatenate(column, 0) for column in zip(*(part.tensors for part in parts))]
    pending = iter([whole.to(tensor.device) for whole, tensor in zip(gathered, tensors)])
    joined = iter([_join(column) for column in zip(*(part.note for part in parts))])
    return nesting.map_leaves(
        lambda leaf: next(pending) if isinstance(leaf, torch.Tensor) else next(joined), value, _is_rows
    )


def _is_rows(value: Any) -> bool:
    if isinstance(value, list):
        return not value or not all(_has_rows(item) for item in value)
    return isinstance(value, torch.Tensor) or _is_array(value)


def _has_rows(value: Any) -> bool:
    return (isinstance(value, torch.Tensor) or _is_array(value)) and len(value.shape) > 0


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "__array__") and hasattr(value, "shape")


def _join(column: tuple[Any, ...]) -> Any:
    first = column[0]
    if isinstance(first, list):
        return [item for part in column for item in part]
    if _is_array(first) and first.shape:
        import numpy as np

        return np.concatenate(column)
    return list(column)


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
    value = settle(value)
    return exchange("ddp.broadcast", note=value if world.is_main() else None)[0].note


def _is_global(over: Any) -> bool:
    """Whether every rank already has the value over all ranks. A loader that isn't sharded gives them all the same."""
    if world.world_size() == 1:
        return True
    over = _loader(over)
    if over is None or hasattr(over, "whole"):
        return over is not None and bool(over.whole)
    if not isinstance(over, DataLoader):
        raise TypeError(f"over must be the loader that the numbers come from, not {type(over).__name__}")
    return True


def _loader(over: Any) -> Any:
    """The loader under a progress bar: tqdm keeps it as `iterable`."""
    while not hasattr(over, "whole") and hasattr(over, "iterable"):
        over = over.iterable
    return over


def _current(over: Any) -> shards.Batch | None:
    found = getattr(_loader(over), "current", None)
    return found if isinstance(found, shards.Batch) else None


def _is_meter(value: Any) -> bool:
    return _is_number(getattr(value, "sum", None)) and _is_number(getattr(value, "count", None))


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dim() == 0
    return isinstance(value, (int, float, complex)) or (_is_array(value) and not value.shape)


def _is_leaf(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or _is_number(value) or _is_array(value) or _is_meter(value)


def _reduce(values: tuple[Any, ...], op: str, over: Any) -> tuple[Any, ...]:
    """All numbers of all values travel in one collective, and each rank combines them in rank order."""
    values = settle(values)
    leaves = nesting.leaves(values, _is_leaf)
    for leaf in leaves:
        if not _is_leaf(leaf):
            raise TypeError(
                f"all_reduce takes numbers, tensors, meters and nestings of them, not {type(leaf).__name__}"
            )
    batch = _current(over)
    weight = 1 / world.world_size() if batch is None else batch.share
    sent = [_numbers(leaf) for leaf in leaves]
    parts = exchange("ddp.all_reduce", [t for tensors in sent for t in tensors], weight)
    columns = iter(zip(*(part.tensors for part in parts)))
    weights = [part.note for part in parts]
    results = iter(
        [_combine(leaf, [next(columns) for _ in tensors], op, weights) for leaf, tensors in zip(leaves, sent)]
    )
    reduced: tuple[Any, ...] = nesting.map_leaves(lambda _: next(results), values, _is_leaf)
    return reduced


_METER = ("sum", "count", "val")


def _numbers(leaf: Any) -> list[torch.Tensor]:
    if _is_meter(leaf):
        return [_as_tensor(getattr(leaf, name)) for name in _METER if _is_number(getattr(leaf, name, None))]
    return [_as_tensor(leaf)]


def _as_tensor(value: Any) -> torch.Tensor:
    """Numbers in the widest type of their kind, so that nothing is lost on the way."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, complex):
        return torch.tensor(value, dtype=torch.complex128)
    if _is_array(value):
        return torch.as_tensor(value)
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)


def _combine(leaf: Any, columns: list[tuple[torch.Tensor, ...]], op: str, weights: list[float]) -> Any:
    if not _is_meter(leaf):
        return _like(leaf, _fold(columns[0], op, weights), op)
    result = copy.copy(leaf)
    totals, counts = columns[0], columns[1]
    result.sum = _like(leaf.sum, _fold(totals, "sum", weights), "sum")
    result.count = _like(leaf.count, _fold(counts, "sum", weights), "sum")
    if _is_number(getattr(leaf, "avg", None)) and "avg" not in _properties(leaf):
        result.avg = result.sum / result.count if result.count else leaf.avg
    if len(columns) > len(("sum", "count")) and "val" not in _properties(leaf):
        result.val = _like(leaf.val, _fold(columns[2], "mean", weights), "mean")
    return result


def _properties(leaf: Any) -> set[str]:
    return {name for name in ("avg", "val") if isinstance(getattr(type(leaf), name, None), property)}


def _fold(column: tuple[torch.Tensor, ...], op: str, weights: list[float]) -> torch.Tensor:
    if op == "mean":
        total = sum(weights)
        wide = [_widened(tensor) * (weight / total) for tensor, weight in zip(column, weights)]
        return torch.stack(wide).sum(0)
    stacked = torch.stack(list(column))
    if op == "sum":
        if stacked.dtype == torch.bool:
            return stacked.sum(0)
        return _widened(stacked).sum(0) if stacked.is_floating_point() else stacked.sum(0, dtype=stacked.dtype)
    return stacked.amax(0) if op == "max" else stacked.amin(0)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_complex() else tensor.to(torch.float64)


def _like(value: Any, result: torch.Tensor, op: str) -> Any:
    """`result` as the kind of thing that `value` is."""
    if isinstance(value, torch.Tensor):
        changes = (op == "mean" and not value.is_floating_point()) or (op == "sum" and value.dtype == torch.bool)
        dtype = torch.get_default_dtype() if changes and op == "mean" else result.dtype if changes else value.dtype
        return result.to(device=value.device, dtype=dtype if not value.is_complex() else value.dtype)
    if _is_array(value):
        array = result.cpu().numpy()
        keeps = value.dtype.kind in "fc" or (op != "mean" and value.dtype.kind != "b")
        array = array.astype(value.dtype) if keeps else array
        return array if value.shape else array[()]
    number = result.item()
    if op in ("max", "min") and isinstance(value, bool):
        return bool(number)
    return number
