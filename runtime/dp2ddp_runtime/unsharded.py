"""A sharded loader as it was before: for what is pickled of it, and for its copies."""

from __future__ import annotations

import copyreg
import weakref
from typing import Any

from torch.utils.data import DataLoader


class Sharded:
    """What a loader was sharded to, kept with it, but not in its pickles and deep copies."""

    def __init__(self, original: DataLoader[Any], loader: DataLoader[Any]) -> None:
        self.original = weakref.ref(original)
        self.loader = loader

    def __reduce__(self) -> Any:
        return type(None), ()


def remember(original: DataLoader[Any], loader: DataLoader[Any]) -> None:
    """Note in `loader`, a copy of `original` in another class, which attributes are others."""
    loader.__dict__.pop("_sharded", None)  # of a loader that `original` is a copy of
    pairs = {name: (loader.__dict__[name], value) for name, value in original.__dict__.items() if name != "_sharded"}
    loader.__dict__["_replaced"] = {name: (ours, value) for name, (ours, value) in pairs.items() if ours is not value}


def restored(loader: DataLoader[Any], kind: Any) -> DataLoader[Any]:
    """A loader of the class `kind`, the original's, with its attributes, and those that the script has set since."""
    attributes = {**vars(loader), "_iterator": None}
    for name, (ours, value) in attributes.pop("_replaced").items():
        if attributes.get(name) is ours:
            attributes[name] = value
    attributes.pop("_draws", None)
    original: DataLoader[Any] = kind.__new__(kind)
    original.__dict__.update(attributes)
    return original


def reduced(original: DataLoader[Any], protocol: Any) -> tuple[Any, ...]:
    """What pickle is told of an object that is pickled as another one (https://docs.python.org/3/library/pickle.html)."""
    told: Any = original.__reduce_ex__(protocol)
    if told[0] is not vars(copyreg)["__newobj__"]:  # which pickle takes for an object's own class alone
        return tuple(told)
    return (vars(copyreg)["_reconstructor"], (type(original), object, None), *told[2:])
