"""What in a batch has a row for each sample, and how ranks' parts become a whole.

`default_collate` makes a tensor of each field, with the samples along its first dimension, or a list of texts. Of a
`collate_fn` of the script's it is said (`rows=True`) that rows stay apart in it: they are what grows with the samples.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

import torch

from . import codec
from .nesting import items, rebuilt

_FEW = 16  # numbers that are compared
ROWS, ITEMS, SAME = "rows", "items", "same"


class Column(NamedTuple):
    """A part of a batch.

    Attributes:
        kind: ROWS, a tensor with a row for each sample; ITEMS, a list, tuple or array with an item for each (text,
            boxes), which travels with the batch; SAME, which is the same for any samples.
    """

    kind: str
    value: Any


def marked(batch: Any) -> Any:
    """A batch of `default_collate`'s, or of `Collate`'s, whose parts are marked already."""
    if isinstance(batch, Column):
        return batch
    if isinstance(batch, torch.Tensor):
        return Column(ROWS, batch)
    if isinstance(batch, (list, tuple)) and batch and all(isinstance(item, (str, bytes)) for item in batch):
        return Column(ITEMS, batch)
    inner = items(batch)
    return Column(SAME, batch) if inner is None else rebuilt(batch, {key: marked(item) for key, item in inner.items()})


def about(column: Column) -> Any:
    """What has to be the same on all ranks."""
    value = column.value
    if column.kind == ROWS:
        return [str(value.dtype), *value.shape[1:]]
    if column.kind == ITEMS:
        return type(value).__name__
    is_large = isinstance(value, torch.Tensor) and value.numel() > _FEW
    return [str(value.dtype), *value.shape] if is_large else repr(value)


def joined(like: Any, parts: Sequence[Any]) -> Any:
    """The ranks' items, one behind the other, as one is."""
    if hasattr(like, "dtype"):
        return codec.np.concatenate(parts)
    return type(like)(itertools.chain(*parts))


class Collate:
    """The script's `collate_fn`, where rows are said to stay apart. Gives its batch with `Column`s.

    What has as many entries as there are samples, and one more for one sample more (tried once), has rows or items.
    """

    def __init__(self, original: Callable[[Any], Any]) -> None:
        self._original = original
        self._kinds: Any = None

    def __call__(self, samples: Any) -> Any:
        count, more = len(samples), None
        if self._kinds is None:
            more = self._original([copy.deepcopy(each) for each in (*samples, samples[0])])
        batch = self._original(samples)
        if self._kinds is None:
            self._kinds = _grown("batch", batch, more, count)
        return _as_kinds_say("batch", batch, self._kinds, count)


def _grown(name: str, one: Any, more: Any, count: int) -> Any:
    """What a part of a batch is, by one of one sample more: a kind; of a container, a dict of them."""
    if (_length(one), _length(more)) == (count, count + 1):
        return ROWS if isinstance(one, torch.Tensor) else ITEMS
    inner, others = items(one), items(more)
    if inner is not None and others is not None and inner.keys() == others.keys():
        return {key: _grown(f"{name}[{key!r}]", item, others[key], count) for key, item in inner.items()}
    is_same = isinstance(one, torch.Tensor) and isinstance(more, torch.Tensor) and one.shape == more.shape
    if is_same or one is None or isinstance(one, (bool, int, float, str, bytes)):
        return SAME
    raise _refusal(name, one, count)


def _as_kinds_say(name: str, value: Any, kinds: Any, count: int) -> Any:
    inner = items(value) if isinstance(kinds, dict) else None
    if inner is not None and inner.keys() == kinds.keys():
        return rebuilt(value, {key: _as_kinds_say(f"{name}[{key!r}]", inner[key], kinds[key], count) for key in inner})
    if isinstance(kinds, dict) or (kinds != SAME and _length(value) != count):
        raise _refusal(name, value, count)
    return Column(kinds, value)


def _length(value: Any) -> int:
    is_sequence = isinstance(value, (list, tuple)) or (hasattr(value, "dtype") and getattr(value, "ndim", 0) > 0)
    return len(value) if is_sequence else -1


def _refusal(name: str, value: Any, count: int) -> ValueError:
    size = f" of shape {[*value.shape]}" if hasattr(value, "shape") else ""
    return ValueError(
        "shard_loader(loader, rows=True): rows don't stay apart in the loader's collate_fn: "
        f"{name} is a {type(value).__name__}{size} for {count} samples, which neither grows by one with each sample "
        "nor is the same for all. Leave out rows=True: then every rank loads whole batches, as the original does"
    )
