"""Loaders that nobody has sharded and whose batches the wrapped model gets: each rank loads all of them. That is told.

Such as a library makes and goes through. Batches change on their way to the model, so what counts is that the two take
turns: a batch is drawn, the model gets whole tensors, the next one is drawn.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Iterable
from typing import Any

from torch.utils.data import DataLoader

from ..base.location import here
from .deferred import Deferred
from .loader import _RankLoader

_TURNS = 3  # that are no chance: a script may draw a batch to look at, or evaluate a model that isn't wrapped


class _Pass:
    """One pass over a loader."""

    def __init__(self) -> None:
        self.line = here().line
        self.drawn = self.turns = 0


_passes: weakref.WeakKeyDictionary[Any, _Pass] = weakref.WeakKeyDictionary()  # by their iterators
_has_told = False


def watch() -> None:
    """From now on, note which loaders are gone through that aren't sharded."""
    begin: Any = DataLoader.__iter__

    @functools.wraps(begin)
    def begin_noted(loader: Any) -> Any:
        batches = begin(loader)
        if not isinstance(loader, _RankLoader) and not _has_told:
            _passes[batches] = _Pass()
        return batches

    DataLoader.__iter__ = begin_noted  # type: ignore[method-assign]


def look(given: Iterable[Any]) -> None:
    """The wrapped model is given these."""
    global _has_told
    if not _passes:
        return
    if any(isinstance(each, Deferred) for each in given):
        _passes.clear()  # what trains is sharded
    for batches, each in list(_passes.items()):
        if batches._num_yielded > each.drawn:
            each.drawn = batches._num_yielded
            each.turns += 1
        if each.turns == _TURNS:
            _has_told = True
            _passes.clear()
            warnings.warn(
                f"the batches of {each.line} come from a DataLoader that isn't sharded: the results are the same, but "
                "every rank loads whole batches. Pass it through ddp.shard_loader() where it is made or handed on",
                stacklevel=5,
            )
            return
