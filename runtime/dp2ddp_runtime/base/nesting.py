"""Nested values: tensors in tuples, lists, dicts, namedtuples and dataclasses, and how a batch is cut for the ranks."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping, Sequence
from operator import is_
from typing import Any, Callable

import torch

from . import world


def chunk_sizes(total: int, parts: int, ranks: int | None = None) -> list[int]:
    """The sizes in which `torch.chunk` cuts `total` rows for `parts` ranks: ceil(total / parts) each, the last smaller.

    There may be fewer chunks than ranks (4 rows on 3 ranks: 2 and 2), of which there may be more than `parts`; the
    ranks that get none have 0.
    """
    size = -(-total // parts)
    return [max(0, min(size, total - index * size)) for index in range(ranks or parts)]


def own_chunk(sizes: Sequence[int]) -> slice:
    """Which rows are this rank's, of chunks that have `sizes`; rank 0's on a rank that has none."""
    index = world.rank() if sizes[world.rank()] else 0
    start = sum(sizes[:index])
    return slice(start, start + sizes[index])


def identical(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether two sequences hold the very same objects."""
    return len(some) == len(others) and all(map(is_, some, others))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def items(value: Any) -> dict[Any, Any] | None:
    """What is in a tuple, list, mapping or dataclass, by place or name; None if it is something else."""
    if isinstance(value, (tuple, list)):
        return dict(enumerate(value))
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def map_leaves(fn: Callable[[Any], Any], value: Any, is_leaf: Callable[[Any], bool] = _is_tensor) -> Any:
    """The same nesting with `fn` applied to whatever is no tuple, list, mapping or dataclass, or is a leaf anyway."""
    inner = None if is_leaf(value) else items(value)
    if inner is None:
        return fn(value)
    return rebuilt(value, {key: map_leaves(fn, item, is_leaf) for key, item in inner.items()})


def rebuilt(value: Any, mapped: dict[Any, Any]) -> Any:
    """A tuple, list, mapping or dataclass like `value`, with what is `mapped` in place of its `items`."""
    kind: Any = type(value)
    if isinstance(value, (tuple, list)):
        is_named = hasattr(value, "_fields") and hasattr(value, "_asdict")
        return kind(*mapped.values()) if is_named else kind(mapped.values())
    if isinstance(value, Mapping) and not isinstance(value, MutableMapping):
        return kind(mapped)
    result = copy.copy(value)  # keeps a defaultdict's factory, an OrderedDict's class, ...
    for key, item in mapped.items():
        if isinstance(value, Mapping):
            result[key] = item
        else:
            object.__setattr__(result, key, item)
    return result


def map_tensors(fn: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The same nesting with `fn` applied to every tensor."""
    return map_leaves(lambda leaf: fn(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


def leaves(value: Any, is_leaf: Callable[[Any], bool] = _is_tensor) -> list[Any]:
    """What `map_leaves` applies its function to, in that order."""
    inner = None if is_leaf(value) else items(value)
    return [value] if inner is None else [leaf for item in inner.values() for leaf in leaves(item, is_leaf)]


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors, in the order of `map_tensors`."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def concatenate(parts: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """The parts as one tensor: along `dim`, scalars as a vector with an entry each, as in `nn.DataParallel`."""
    if all(part.dim() == 0 for part in parts):
        return torch.stack(list(parts))
    return torch.cat(list(parts), dim)


def count_chunks(value: Any, parts: int, dim: int) -> int | None:
    """How many replicas `nn.DataParallel` has arguments for: the fewest chunks that any tensor has along `dim`.

    As in `torch.nn.parallel.scatter`, anything but tensors with dimensions in tuples, lists, dicts and namedtuples
    goes to each replica as it is. None if there is nothing else.
    """
    cut = [leaf for leaf in leaves(value, _is_not_scattered) if _is_cut(leaf)]
    return min((sum(map(bool, chunk_sizes(leaf.size(dim), parts))) or parts for leaf in cut), default=None)


def take_chunk(value: Any, cut: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """One replica's part of `value`: `cut` applied to each tensor that `nn.DataParallel` cuts; containers are new."""
    return map_leaves(lambda leaf: cut(leaf) if _is_cut(leaf) else leaf, value, _is_not_scattered)


def _is_not_scattered(value: Any) -> bool:
    return not isinstance(value, (tuple, list, dict))


def _is_cut(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0
