"""What `nn.DataParallel`'s replicas share and ranks don't: objects that a forward gets, containers that modules hold.

A forward that changes them changes each rank's own, for its rows alone: that is told.
"""

from __future__ import annotations

import collections
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo

from ..base import nesting
from ..base.location import here
from ..ranks.collectives import checksum

_PLAIN = (bool, int, float, str)
_SIZED = (list, dict, set, collections.deque)
_EVERY_MODULES = frozenset(vars(nn.Module()))  # hooks, parameters


class Shared:
    """What a forward may change.

    Args:
        arguments: the forward's, in which objects are looked at.
        modules: those whose containers are looked at, with their names.
    """

    @_disable_dynamo
    def __init__(self, arguments: Any, modules: Iterable[tuple[str, nn.Module]]) -> None:
        kinds = (torch.Tensor, nn.Module, type)
        self._objects = [
            (f"{type(leaf).__name__} that is argument {number}", leaf, _state(leaf))
            for number, leaf in enumerate(nesting.leaves(arguments), 1)
            if hasattr(leaf, "__dict__") and not isinstance(leaf, kinds)
        ]
        self._containers = [
            (f"{type(held).__name__} {type(module).__name__}.{name}" + f" ({path})" * bool(path), held, _items(held))
            for path, module in modules
            for name, held in vars(module).items()
            if isinstance(held, _SIZED) and name not in _EVERY_MODULES
        ]

    @_disable_dynamo
    def changed(self) -> dict[str, int | None]:
        """What has changed, by what it is called, with a checksum of a dictionary or set: ranks may all keep the same.

        (A list to which each replica appends has fewer entries on ranks, whatever these are.)
        """
        found: dict[str, int | None] = {name: None for name, each, state in self._objects if _state(each) != state}
        for name, held, items in self._containers:
            now = _items(held)
            if not nesting.identical(now, items):
                told = repr(sorted(map(_told, nesting.leaves(now)))).encode()
                found[name] = None if isinstance(held, (list, collections.deque)) else zlib.crc32(told)
        return found


def warn_of_changed(told: Sequence[Mapping[str, int | None]]) -> None:
    """Say so where ranks, each of which has told what its forward has changed, hold something else than one process."""
    for name in dict.fromkeys(name for each in told for name in each):
        found = {each.get(name, 0) for each in told}
        if len(told) > 1 and (None in found or len(found) > 1):
            warnings.warn(
                f"the model at {here().line} changes the {name}: DataParallel's replicas share one, and each rank "
                "changes its own, for its rows alone. Change it by what the model returns",
                stacklevel=3,
            )
            return


def _state(each: Any) -> dict[str, Any]:
    """What tells whether an object has changed: its numbers and texts, and how much its collections hold."""

    def of(value: Any) -> Any:
        return value if isinstance(value, _PLAIN) else len(value) if isinstance(value, _SIZED) else None

    return {name: of(value) for name, value in vars(each).items()}


def _items(held: Any) -> list[Any]:
    return [*held, *held.values()] if isinstance(held, dict) else [*held]


def _told(value: Any) -> str:
    """Text that is the same on ranks that hold the same."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return f"{tuple(value.shape)} {checksum(value).tolist()}"
    return repr(value) if isinstance(value, (*_PLAIN, torch.dtype, torch.device)) else type(value).__name__
