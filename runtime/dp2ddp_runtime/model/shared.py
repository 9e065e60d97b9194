"""What `nn.DataParallel`'s replicas share and ranks don't: objects that a forward gets, and what modules hold.

A forward that changes them changes each rank's own, for its rows alone: that is told.
"""

from __future__ import annotations

import collections
import copyreg
import numbers
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
_APPENDED = (list, collections.deque)
_NO_STATE = (torch.Tensor, nn.Module, type)
_EVERY_MODULES = frozenset(vars(nn.Module()))  # hooks, parameters
_NOTHING = (None, -1)
_LEVELS = 1  # of objects and containers below one that a module holds: a dictionary of meters, a meter's list
# Packages whose objects keep nothing of a script's rows: functions, files, loggers, generators.
_OTHERS = frozenset({"builtins", "logging", "_io", "torch", __name__.split(".")[0]})


class Shared:
    """What a forward may change.

    Args:
        arguments: the forward's, in which objects are looked at.
        modules: those whose containers and plain objects are looked at, with their names.
    """

    @_disable_dynamo
    def __init__(self, arguments: Any, modules: Iterable[tuple[str, nn.Module]]) -> None:
        self._objects = [
            (f"{type(leaf).__name__} that is argument {number}", leaf, _state(leaf))
            for number, leaf in enumerate(nesting.leaves(arguments), 1)
            if hasattr(leaf, "__dict__") and not isinstance(leaf, _NO_STATE)
        ]
        self._held: dict[int, tuple[str, Any, dict[Any, tuple[Any, int]]]] = {}
        for path, module in modules:
            own = ((name, held) for name, held in vars(module).items() if name not in _EVERY_MODULES)
            self._look_at(own, type(module).__name__, f" ({path})" * bool(path), _LEVELS)

    def _look_at(self, named: Iterable[tuple[Any, Any]], holder: str, where: str, levels: int) -> None:
        for key, held in named:
            if not isinstance(held, _PLAIN) and id(held) not in self._held and _may_change(held):
                name = f"{holder}.{key}"
                self._held[id(held)] = f"{type(held).__name__} {name}{where}", held, _seen(held)
                self._look_at(_named(held) if levels else (), name, where, levels - 1)

    @_disable_dynamo
    def changed(self) -> dict[str, int | None]:
        """What has changed, by what it is called, with a checksum where ranks may all keep the same; None elsewhere.

        (A list to which each replica appends has fewer entries on ranks, whatever these are; a counter counts less.)
        """
        found: dict[str, int | None] = {name: None for name, each, state in self._objects if _state(each) != state}
        for name, held, before in self._held.values():
            now = _seen(held)
            both = ((key, before.get(key, _NOTHING), now.get(key, _NOTHING)) for key in {**before, **now})
            pairs = [(key, old[0], new[0]) for key, old, new in both if old[0] is not new[0] or old[1] != new[1]]
            if pairs:
                is_less = isinstance(held, _APPENDED) or any(_counts(old, new) for _, old, new in pairs)
                told = "" if is_less else repr(sorted((_told(key), _told(new)) for key, _, new in pairs))
                found[name] = None if is_less else zlib.crc32(told.encode())
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


def _seen(held: Any) -> dict[Any, tuple[Any, int]]:
    """What a container or an object holds, and what tells whether something was written into it, if that is a tensor.

    (Lists hold parameters and buffers, which are looked after elsewhere; so are tensors of a class of their own.)
    """

    def written(each: Any) -> int:
        is_told = type(each) is torch.Tensor and not isinstance(held, _APPENDED) and not each.is_inference()
        return each._version if is_told else 0

    return {key: (each, written(each)) for key, each in _named(held)}


def _counts(old: Any, new: Any) -> bool:
    """Whether a number is twice what it was: that is what a counter is in its second call, and no cache."""
    return isinstance(old, (int, float)) and isinstance(new, (int, float)) and new == 2 * old != 0


def _may_change(held: Any) -> bool:
    """Whether this is a container, or a plain object of a class in Python."""
    if isinstance(held, _SIZED):
        return True
    is_plain = not isinstance(held, _NO_STATE) and type(held).__module__.split(".")[0] not in _OTHERS
    return is_plain and (hasattr(held, "__dict__") or hasattr(held, "__slots__"))


def _named(held: Any) -> Iterable[tuple[Any, Any]]:
    """What a container or an object holds, by key, place or attribute."""
    if isinstance(held, dict):
        return held.items()
    if isinstance(held, _SIZED):
        return dict.fromkeys(held).items() if isinstance(held, set) else enumerate(held)
    slots = copyreg._slotnames(type(held))  # type: ignore[attr-defined]
    return {
        **getattr(held, "__dict__", {}),
        **{name: getattr(held, name) for name in slots if hasattr(held, name)},
    }.items()


def _told(value: Any, levels: int = 3) -> str:
    """Text that is the same on ranks that hold the same."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided:
        return f"{tuple(value.shape)} {checksum(value).tolist()}"
    if isinstance(value, (numbers.Number, str, torch.dtype, torch.device)):
        return repr(value)
    if levels and (isinstance(value, tuple) or _may_change(value)):
        pairs = enumerate(value) if isinstance(value, tuple) else _named(value)
        return repr(sorted([_told(part, levels - 1) for part in pair] for pair in pairs))
    return type(value).__name__
