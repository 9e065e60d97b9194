"""Loaders that aren't sharded: those that can't be, and sharded ones as they were before, for pickles and copies."""

from __future__ import annotations

import copyreg
import weakref
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from ..ranks import rng
from .samplers import Delegate


def why_not_split(loader: DataLoader[Any], rows: bool = False) -> str | None:
    """Why the ranks can't load a batch together; None if they can. `rows`: whether its rows are said to stay apart."""
    kind = type(loader)
    if kind.__iter__ is not DataLoader.__iter__ or kind._get_iterator is not DataLoader._get_iterator:
        return f"{kind.__name__} has an iterator of its own"
    if isinstance(loader.dataset, IterableDataset):
        return "its dataset is an IterableDataset"
    if loader.batch_sampler is None:
        return "it has batch_size=None"
    if rows:
        return None
    if loader.collate_fn is not default_collate:
        return "it has a collate_fn of its own"
    if any(fn.__module__ != default_collate.__module__ for fn in default_collate_fn_map.values()):
        return "default_collate was extended"
    return None


class SameOnAllRanks(Delegate):
    """Something that isn't a `DataLoader` and yields the same batches on every rank."""

    def __iter__(self) -> Any:
        rng.adopt_main_state()
        return iter(self._inner)

    def __getitem__(self, index: Any) -> Any:
        return self._inner[index]


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
    for name in ("_moves", "_watch", "_contents", "_originals", "_seeds", "_rows"):  # what this runtime notes there
        attributes.pop(name, None)
    original: DataLoader[Any] = kind.__new__(kind)
    original.__dict__.update(attributes)
    return original


def reduced(original: DataLoader[Any], protocol: Any) -> tuple[Any, ...]:
    """What pickle is told of an object that is pickled as another one (https://docs.python.org/3/library/pickle.html)."""
    told: Any = original.__reduce_ex__(protocol)
    if told[0] is not vars(copyreg)["__newobj__"]:  # which pickle takes for an object's own class alone
        return tuple(told)
    return (vars(copyreg)["_reconstructor"], (type(original), object, None), *told[2:])
