"""Tensors in tuples, lists, mappings and dataclasses, and each rank's number of rows."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping
from typing import Any, Callable

import torch

from .world import world


def chunks(total: int, replicas: int | None = None, ranks: int | None = None) -> tuple[int, ...]:
    """How many of `total` rows each rank has, in `torch.chunk`'s sizes: ceil(total / replicas), the last ones fewer.

    Args:
        replicas: that there are, on the first ranks; None: on all of them. Ranks without one, and the last ranks where
            there are too few rows, have 0.
        ranks: that there are; None: as many as there are.
    """
    replicas, ranks = replicas or world.size, ranks or world.size
    each = -(-total // replicas)
    return tuple(max(0, min(each, total - rank * each)) if rank < replicas else 0 for rank in range(ranks))


def items(value: Any) -> dict[Any, Any] | None:
    """What is in a tuple, list, mapping or dataclass, by place or name; None if it is something else."""
    if isinstance(value, (tuple, list)):
        return dict(enumerate(value))
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def rebuilt(value: Any, mapped: dict[Any, Any]) -> Any:
    """A tuple, list, mapping or dataclass like `value`, with what is `mapped` in place of its `items`."""
    kind: Any = type(value)
    if isinstance(value, (tuple, list)):
        return kind(*mapped.values()) if hasattr(value, "_fields") else kind(mapped.values())
    if isinstance(value, Mapping) and not isinstance(value, MutableMapping):
        return kind(mapped)
    result = copy.copy(value)  # keeps a defaultdict's factory, an OrderedDict's class, ...
    for key, item in mapped.items():
        if isinstance(value, Mapping):
            result[key] = item
        else:
            object.__setattr__(result, key, item)  # the class may be frozen
    return result


def nested(fn: Callable[[Any], Any], value: Any, kind: Any = torch.Tensor) -> Any:
    """`value` with `fn` of each tensor in it, or of all that is of another kind. Containers without stay."""
    if isinstance(value, kind):
        return fn(value)
    inner = items(value)
    if not inner:
        return value
    mapped = {key: nested(fn, item, kind) for key, item in inner.items()}
    return rebuilt(value, mapped) if any(mapped[key] is not item for key, item in inner.items()) else value


def tensors(value: Any, kind: Any = torch.Tensor) -> list[Any]:
    """All tensors in `value`, or all that is of another kind, in the order in which `nested` comes to them."""
    if isinstance(value, kind):
        return [value]
    return [found for each in (items(value) or {}).values() for found in tensors(each, kind)]
