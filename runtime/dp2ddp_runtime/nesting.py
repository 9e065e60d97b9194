"""Nested values: tensors in tuples, lists, dicts, namedtuples and dataclasses, and how a batch is cut for the ranks."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Callable

import torch

from . import world


def chunk_sizes(total: int, parts: int) -> list[int]:
    """The sizes in which `torch.chunk` cuts `total` rows for `parts` ranks: ceil(total / parts) each, the last smaller.

    There may be fewer chunks than ranks (4 rows on 3 ranks: 2 and 2); the ranks that get none have 0.
    """
    size = -(-total // parts)
    return [max(0, min(size, total - index * size)) for index in range(parts)]


def own_chunk(sizes: Sequence[int]) -> slice:
    """Which rows are this rank's, of chunks that have `sizes`; rank 0's on a rank that has none."""
    index = world.rank() if sizes[world.rank()] else 0
    start = sum(sizes[:index])
    return slice(start, start + sizes[index])


def is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields") and hasattr(value, "_asdict")


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def map_leaves(fn: Callable[[Any], Any], value: Any, is_leaf: Callable[[Any], bool] = _is_tensor) -> Any:
    """The same nesting with `fn` applied to whatever is no tuple, list, mapping or dataclass, or is a leaf anyway."""
    if is_leaf(value):
        return fn(value)
    if is_namedtuple(value):
        return type(value)(*(map_leaves(fn, item, is_leaf) for item in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_leaves(fn, item, is_leaf) for item in value)
    if isinstance(value, Mapping):
        items = [(key, map_leaves(fn, item, is_leaf)) for key, item in value.items()]
        if not isinstance(value, MutableMapping):
            return type(value)(items)  # type: ignore[call-arg]
        result = copy.copy(value)  # keeps a defaultdict's factory, an OrderedDict's class, ...
        for key, item in items:
            result[key] = item
        return result
    if _is_dataclass(value):
        fields = [field.name for field in dataclasses.fields(value)]
        result = copy.copy(value)
        for name in fields:
            object.__setattr__(result, name, map_leaves(fn, getattr(value, name), is_leaf))
        return result
    return fn(value)


def map_tensors(fn: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """The same nesting with `fn` applied to every tensor."""
    return map_leaves(lambda leaf: fn(leaf) if isinstance(leaf, torch.Tensor) else leaf, value)


def leaves(value: Any, is_leaf: Callable[[Any], bool] = _is_tensor) -> list[Any]:
    """What `map_leaves` applies its function to, in that order."""
    if is_leaf(value):
        return [value]
    inner: Any = None
    if isinstance(value, (tuple, list)):
        inner = value
    elif isinstance(value, Mapping):
        inner = value.values()
    elif _is_dataclass(value):
        inner = [getattr(value, field.name) for field in dataclasses.fields(value)]
    return [value] if inner is None else [leaf for item in inner for leaf in leaves(item, is_leaf)]


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors, in the order of `map_tensors`."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def count_chunks(value: Any, parts: int, dim: int) -> int:
    """How many replicas `nn.DataParallel` runs for `value`: the fewest chunks that a tensor in it has along `dim`.

    As in `torch.nn.parallel.scatter`, tensors are cut inside tuples, lists, dicts and namedtuples; anything else, and
    a tensor without dimensions, goes to each replica as it is.
    """
    if isinstance(value, torch.Tensor):
        size = value.size(dim) if value.dim() else 0
        return -(-size // -(-size // parts)) if size else parts
    return min((count_chunks(item, parts, dim) for item in _scattered(value)), default=parts)


def _scattered(value: Any) -> Sequence[Any]:
    if isinstance(value, (tuple, list)):
        return value
    if isinstance(value, dict):
        return list(value.values())
    return ()


def take_chunk(value: Any, cut: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """One replica's part of `value`: `cut` applied to each tensor that `nn.DataParallel` cuts; containers are new."""
    if isinstance(value, torch.Tensor):
        return cut(value) if value.dim() else value
    if is_namedtuple(value):
        return type(value)(*(take_chunk(item, cut) for item in value))
    if isinstance(value, tuple) and value:
        return tuple(take_chunk(item, cut) for item in value)
    if isinstance(value, list) and value:
        return [take_chunk(item, cut) for item in value]
    if isinstance(value, dict) and value:
        return type(value)((key, take_chunk(item, cut)) for key, item in value.items())
    return value
