"""What a data set holds, compared between the ranks: rank 0's indices must not meet other labels on other ranks."""

from __future__ import annotations

import functools
import numbers
import random
import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from ..ranks import rng
from ..ranks.exchange import Divergence, Piggybacked

_SAMPLE, _ITEMS = 1024, 64
# By the holder's id and the attribute's name: where a pass of a loader has written. Most likely a cache, of this rank's
# rows.
_filled: set[tuple[int, str]] = set()
_Rows = dict[tuple[int, str], list[float]]


class Contents:
    """What a data set (`root`), and those in it, hold in tensors, arrays and lists of numbers: the same on all ranks.

    Rank 0's indices would meet other labels on other ranks. Only a sample of each is looked at: `_SAMPLE` numbers,
    which may differ a little where they are rounded. Files that are mapped into memory are left out, and so is what
    was changed by a pass of a loader, rather than by the script between two of them.
    """

    def __init__(self, root: Any, name: str) -> None:
        self._root, self._name = root, name
        self._start: _Rows = {}
        self._ended = True

    def begin(self) -> Piggybacked:
        """A pass begins: what tells the ranks whether they differ."""
        now = _rows(self._root)
        # Is the last pass still going on? Then nobody knows who has changed something.
        unknown = set() if self._ended else {key for key, row in now.items() if self._start.get(key, row) != row}
        self._start, self._ended = now, False
        compared = {key[1]: row for key, row in now.items() if key not in _filled and key not in unknown}
        names = {zlib.crc32(name.encode()): name for name in compared}
        table = [[number, *compared[name]] for number, name in names.items()]
        sent = torch.tensor(table, dtype=torch.float64).reshape(-1, 5)
        return Piggybacked(sent, functools.partial(_compare, self._name, names))

    def end(self) -> None:
        """The pass is over."""
        if self._ended:
            return
        now = _rows(self._root)
        _filled.update(key for key, row in now.items() if self._start.get(key) != row)
        self._ended = True


def _compare(told: str, names: dict[int, str], ranks: list[torch.Tensor]) -> None:
    tables = [{int(number): row for number, *row in each.tolist()} for each in ranks]
    for number in set(tables[0]).intersection(*tables[1:]):  # caches that begin empty are not on all
        exact, first, second, sizes = zip(*(each[number] for each in tables))
        apart = max(max(each) - min(each) for each in (first, second))
        if len(set(exact)) > 1 or apart > 1e-4 * max(sizes):
            raise Divergence(
                f"{names[number]!r} of the data set of a {told} is not the same on all ranks: they would load other "
                "batches. Where each rank computes it for itself, or draws it from a generator without a seed, take "
                "rank 0's: `ddp.broadcast(...)`"
            )


def _rows(root: Any) -> _Rows:
    """By the object that holds it (its id) and the attribute's name: what `_sample` tells of it."""
    found: _Rows = {}
    todo, seen = deque([("", root)]), {id(None)}
    while todo:
        path, holder = todo.popleft()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            for place, item in _items(value):
                if isinstance(item, Dataset):
                    todo.append((f"{path}{name}{place}.", item))
                    continue
                row = _sample(item)
                if row is not None:
                    found[id(holder), f"{path}{name}{place}"] = row
    return found


def _items(value: Any) -> list[tuple[str, Any]]:
    """A tuple's or list's tensors and data sets, each by itself, with its place; or the value."""
    if isinstance(value, (tuple, list)) and value and isinstance(value[0], (torch.Tensor, Dataset)):
        return [(f"[{index}]", item) for index, item in enumerate(value[:_ITEMS])]
    return [("", value)]


def _sample(value: Any) -> list[float] | None:
    """A checksum of a sample of numbers, two sums of the rounded ones, and these numbers' size. None if it has none."""
    if type(value) in (list, tuple):
        about: Any = len(value)
        found = [number for place in _places(len(value)) for number in _numbers(value[place])]
    elif _is_array(value):
        about = (tuple(value.shape), str(value.dtype))
        picked = value[_index(value.shape)].tolist()
        found = picked if isinstance(picked, list) else [picked]
    else:
        return None
    if not found:
        return None
    exact = [number for number in found if not isinstance(number, float)]
    rounded = torch.tensor([number for number in found if isinstance(number, float)], dtype=torch.float64)
    rounded = rounded.nan_to_num(posinf=0, neginf=0)
    weighted = rounded * torch.arange(len(rounded), dtype=torch.float64).cos()
    checksum = zlib.crc32(repr((about, exact)).encode())
    return [checksum, rounded.sum().item(), weighted.sum().item(), rounded.abs().sum().item()]


def _is_array(value: Any) -> bool:
    if rng.np is not None and type(value) is rng.np.ndarray:
        return value.dtype.kind in "biufc" and value.size > 0
    plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided
    return plain and not value.is_quantized and not value.is_meta and value.numel() > 0


def _numbers(item: Any) -> list[Any]:
    """An item that is a number, or the numbers in a tuple such as (path, label)."""
    items = item[:_ITEMS] if type(item) in (list, tuple) else [item]
    return [each for each in items if isinstance(each, numbers.Number)]


@functools.lru_cache(maxsize=64)
def _places(length: int) -> list[int]:
    """The same on all ranks, and no rows or columns."""
    return list(range(length)) if length <= _SAMPLE else sorted(random.Random(length).sample(range(length), _SAMPLE))


def _index(shape: Sequence[int]) -> tuple[list[int], ...]:
    total = 1
    for size in shape:
        total *= size
    places, index = _places(total), []
    for size in reversed(shape):
        index.append([place % size for place in places])
        places = [place // size for place in places]
    return tuple(reversed(index))
