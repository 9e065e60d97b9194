"""Compare two files that training wrote: checkpoints key by key and tensor by tensor, text number by number."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from . import printed


@dataclass(frozen=True)
class FileDifference:
    """A file that is not the same in both runs, and where: a key, a line, or the whole file.

    `relative` is the relative difference there (see `relative_difference`); infinite where it isn't a number's.
    """

    file: str
    where: str
    relative: float


def relative_difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """||ours - theirs|| / ||ours|| in float64; 0 for equal tensors, infinite for other shapes, dtypes or NaN places."""
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
    scale = float(torch.linalg.vector_norm(torch.where(nan, zero, a)))
    if difference == 0.0:
        return 0.0
    return difference / scale if scale and not math.isnan(difference) else math.inf


def differences(name: str, original: Path, converted: Path, places: float = 0) -> Iterator[FileDifference]:
    """Where two files of one name differ. Numbers in text may be `places` units of their last digit apart."""
    if original.read_bytes() == converted.read_bytes():
        return
    if zipfile.is_zipfile(original) and zipfile.is_zipfile(converted):
        yield from _checkpoints(name, leaves(_load(original)), leaves(_load(converted)))
        return
    texts = _text(original), _text(converted)
    if texts[0] is None or texts[1] is None:
        yield FileDifference(name, "bytes", math.inf)
        return
    for line in printed.differences(texts[0], texts[1]):
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
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        if key not in ours or key not in theirs:
            yield FileDifference(name, f"{key} (only in the {'original' if key in ours else 'converted'})", math.inf)
            continue
        relative = _leaf_difference(ours[key], theirs[key])
        if relative:
            yield FileDifference(name, key, relative)


def _leaf_difference(ours: Any, theirs: Any) -> float:
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return relative_difference(ours, theirs)
    if type(ours) is not type(theirs):
        return math.inf
    if isinstance(ours, float):
        return relative_difference(torch.tensor(ours, dtype=torch.float64), torch.tensor(theirs, dtype=torch.float64))
    return 0.0 if ours == theirs or repr(ours) == repr(theirs) else math.inf


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """What a checkpoint holds, flat: path of keys and indices to tensor, number, string or other object."""
    if isinstance(value, nn.Module):
        value = value.state_dict()
    if isinstance(value, Mapping):
        items = [(f"{path}/{key}" if path else str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    else:
        return {path: value}
    found: dict[str, Any] = {}
    for key, item in items:
        found.update(leaves(item, key))
    return found
