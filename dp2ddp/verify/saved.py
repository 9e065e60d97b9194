"""Compare two files that training wrote: checkpoints key by key and tensor by tensor, text number by number."""

from __future__ import annotations

import math
import statistics
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import printed

_BY_IDENTITY: Any = object.__eq__
_NEGLIGIBLE = 1e-3  # of the size of most tensors


@dataclass(frozen=True)
class FileDifference:
    """A file that is not the same in both runs, and where: a key, a line, or the whole file.

    `relative` is the relative difference there (see `relative_difference`); infinite where it isn't a number's.
    """

    file: str
    where: str
    relative: float


def relative_difference(ours: torch.Tensor, theirs: torch.Tensor, least: float = 0.0) -> float:
    """||ours - theirs|| / ||ours|| in float64; 0 for equal tensors, infinite for other shapes, dtypes or NaN places.

    A tensor whose entries are smaller than `least` (root mean square) is measured as if they were that large.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return math.inf
    if torch.equal(ours, theirs):
        return 0.0
    wide = torch.complex128 if ours.is_complex() else torch.float64
    a, b = ours.to(wide), theirs.to(wide)
    nan = a.isnan()
    if not torch.equal(nan, b.isnan()):
        return math.inf
    same = nan | (a == b)
    zero = torch.zeros((), dtype=wide)
    difference = float(torch.linalg.vector_norm(torch.where(same, zero, a - b)))
    scale = max(float(torch.linalg.vector_norm(torch.where(nan, zero, a))), least * math.sqrt(a.numel()))
    if difference == 0.0:
        return 0.0
    return difference / scale if scale and not math.isnan(difference) else math.inf


def negligible(tensors: Iterable[torch.Tensor]) -> float:
    """The size of entries (root mean square) below which a tensor may hold rounding alone: a thousandth of most others.

    A bias in front of a BatchNorm has no gradient but rounding. Where it starts from zero that is all it ever holds,
    and no two ways to add up numbers agree on it.
    """
    sizes = []
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            size = float(torch.linalg.vector_norm(tensor.double())) / math.sqrt(tensor.numel())
            sizes += [size] if size and math.isfinite(size) else []
    return _NEGLIGIBLE * statistics.median(sizes) if sizes else 0.0


def differences(
    name: str,
    original: Path,
    converted: Path,
    places: float = 0,
    hide: tuple[Callable[[str], str], Callable[[str], str]] = (str, str),
) -> Iterator[FileDifference]:
    """Where two files of one name differ.

    Numbers in text may be `places` units of their last digit apart; `hide` takes out of either text what isn't to be
    compared.
    """
    if original.read_bytes() == converted.read_bytes():
        return
    if zipfile.is_zipfile(original) and zipfile.is_zipfile(converted):
        yield from _checkpoints(name, leaves(_load(original)), leaves(_load(converted)))
        return
    texts = _text(original), _text(converted)
    if texts[0] is None or texts[1] is None:
        yield FileDifference(name, "bytes", math.inf)
        return
    for line in printed.differences(hide[0](texts[0]), hide[1](texts[1])):
        if not line.within(places):
            where = f"line {line.line}: {line.original!r}, {line.converted!r}"
            yield FileDifference(name, where, math.inf if line.places is None or line.whole else line.relative)


def _load(path: Path) -> Any:
    # Whole pickled models included: these are files that the user's own scripts have just written.
    return torch.load(path, map_location="cpu", weights_only=False)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def _checkpoints(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[FileDifference]:
    least = negligible(value for value in ours.values() if isinstance(value, torch.Tensor))
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        if key not in ours or key not in theirs:
            yield FileDifference(name, f"{key} (only in the {'original' if key in ours else 'converted'})", math.inf)
            continue
        relative = _leaf_difference(ours[key], theirs[key], least)
        if relative:
            yield FileDifference(name, key, relative)


def _leaf_difference(ours: Any, theirs: Any, least: float) -> float:
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return relative_difference(ours, theirs, least)
    if type(ours) is not type(theirs):
        return math.inf
    if isinstance(ours, float):
        return relative_difference(torch.tensor(ours, dtype=torch.float64), torch.tensor(theirs, dtype=torch.float64))
    return 0.0 if ours == theirs or repr(ours) == repr(theirs) else math.inf


def leaves(value: Any, path: str = "", inside: frozenset[int] = frozenset()) -> dict[str, Any]:
    """What a checkpoint holds, flat: path of keys and indices to tensor, number, string or other object.

    Args:
        value: the checkpoint.
        path: where it stands in a larger one.
        inside: the ids of what it stands in: an object that leads back to itself is looked at once.
    """
    if id(value) in inside:
        return {}
    opened = _open(value)
    if isinstance(opened, Mapping):
        items = [(f"{path}/{key}" if path else str(key), item) for key, item in opened.items()]
    elif isinstance(opened, (list, tuple)):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(opened)]
    else:
        return {path: opened}
    found: dict[str, Any] = {}
    for key, item in items:
        found.update(leaves(item, key, inside | {id(value)}))
    return found


def _open(value: Any) -> Any:
    """A module's state, a NumPy array as a tensor, the attributes of an object that is only equal to itself."""
    if isinstance(value, nn.Module):
        return value.state_dict()
    if type(value).__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biufc":
        return torch.as_tensor(value)
    if type(value).__eq__ is _BY_IDENTITY and not isinstance(value, type) and getattr(value, "__dict__", None):
        return vars(value)
    return value
