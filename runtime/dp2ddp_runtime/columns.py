"""What in a batch has a row for each sample, and how the ranks' parts become a whole one.

`default_collate` makes a tensor of each field, with the samples along its first dimension, or a list of texts. Of a
`collate_fn` of the script's it is said (`rows=True`) that rows stay apart in it, and tried what grows with the samples.
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
_ADVICE = "Leave out rows=True: then every rank loads whole batches, as the original does"
ROWS, ITEMS, SAME = "rows", "items", "same"


class Column(NamedTuple):
    """A part of a batch.

    Attributes:
        kind: ROWS, a tensor with a row for each sample along `dim`; ITEMS, a list, tuple or array with an item for each
            (text, boxes), which travels with the batch; SAME, which is the same for any samples.
    """

    kind: str
    value: Any
    dim: int = 0


def mapped(fn: Callable[[Column], Any], value: Any) -> Any:
    """The same nesting with `fn` of each column; what holds none is itself."""
    if isinstance(value, Column):
        return fn(value)
    inner = items(value)
    return value if inner is None else rebuilt(value, {key: mapped(fn, item) for key, item in inner.items()})


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
        return [str(value.dtype), *value.shape[: column.dim], *value.shape[column.dim + 1 :]]
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

    What has a row for each sample is what grows by one if there is one sample more: that is tried once, on copies.
    """

    def __init__(self, original: Callable[[Any], Any]) -> None:
        self._original = original
        self._kinds: Any = None

    def __call__(self, samples: Any) -> Any:
        count = len(samples)
        more = self._original([copy.deepcopy(each) for each in (*samples, samples[0])]) if self._kinds is None else None
        batch = self._original(samples)
        if self._kinds is None:
            self._kinds = _grown("batch", batch, more, count)
        return _as_kinds_say("batch", batch, self._kinds, count)


def _grown(name: str, one: Any, more: Any, count: int) -> Any:
    """What a part of a batch is, by one of one sample more: a kind and a dimension; of a container, a dict of them."""
    if isinstance(one, torch.Tensor) and isinstance(more, torch.Tensor):
        larger = [dim for dim, (size, other) in enumerate(zip(one.shape, more.shape)) if size != other]
        if not larger and one.shape == more.shape:
            return SAME, 0
        dim = larger[0] if len(larger) == 1 else -1
        if dim >= 0 and one.dim() == more.dim() and (one.shape[dim], more.shape[dim]) == (count, count + 1):
            return ROWS, dim
        raise _refusal(name, f"has the shape {[*one.shape]} for {count} samples, and {[*more.shape]} for one more")
    sizes = [len(each) if _is_sequence(each) else -1 for each in (one, more)]
    if sizes == [count, count + 1]:
        return ITEMS, 0
    inner, others = items(one), items(more)
    if inner is None or others is None:
        if one is None or isinstance(one, (bool, int, float, str, bytes)):
            return SAME, 0
        raise _refusal(name, f"is a {type(one).__name__}, in which no rows can be found")
    if inner.keys() != others.keys():
        raise _refusal(name, f"has {len(inner)} entries for {count} samples, and {len(others)} for one more")
    return {key: _grown(f"{name}[{key!r}]", item, others[key], count) for key, item in inner.items()}


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (hasattr(value, "dtype") and getattr(value, "ndim", 0) > 0)


def _as_kinds_say(name: str, value: Any, kinds: Any, count: int) -> Any:
    if not isinstance(kinds, dict):
        kind, dim = kinds
        found = len(value) if kind == ITEMS else value.shape[dim] if kind == ROWS else count
        if found != count:
            raise _refusal(name, f"has {found} rows for {count} samples")
        return Column(kind, value, dim)
    inner = items(value)
    if inner is None or inner.keys() != kinds.keys():
        raise _refusal(name, "is not of one kind in all batches")
    return rebuilt(value, {key: _as_kinds_say(f"{name}[{key!r}]", inner[key], kinds[key], count) for key in inner})


def _refusal(what: str, why: str) -> ValueError:
    return ValueError(
        f"shard_loader(loader, rows=True): rows don't stay apart in the loader's collate_fn: {what} {why}. {_ADVICE}"
    )
