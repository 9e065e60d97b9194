"""Compare two files that training wrote: checkpoints key by key and tensor by tensor, text by `printed`."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from dp2ddp.verify.compare import printed, unpickle
from dp2ddp.verify.compare.finding import shown
from dp2ddp.verify.compare.steps import negligible
from dp2ddp.verify.compare.unpickle import Placeholder

Hiding = Callable[[str], str]  # takes out of a text what isn't to be compared
ONLY_IN = " (only in the "
_OF_CONTENT = ".data/serialization_id"  # a checksum of the other files
_NUMPY = b"\x93NUMPY"
_HELD = ("_parameters", "_buffers", "_modules")  # by a module


@dataclass(frozen=True)
class FileDifference:
    """Where a file is not the same in both runs: a key, a line, or the whole file.

    `relative` is the relative difference there (see `relative_difference`); infinite where it isn't a number's.
    `values`: both, in words, where they are no tensors.
    """

    where: str
    relative: float = math.inf
    values: str = ""


def relative_difference(ours: torch.Tensor, theirs: torch.Tensor, least: float = 0.0) -> float:
    """||ours - theirs|| / ||ours|| in float64; 0 for equal tensors, infinite for other shapes, dtypes or NaN places.

    A tensor whose entries are smaller than `least` (root mean square) is measured as if they were that large.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return math.inf
    if torch.equal(ours, theirs):
        return 0.0
    a, b = ((torch.view_as_real(each) if each.is_complex() else each).detach().double() for each in (ours, theirs))
    if not torch.equal(a.isnan(), b.isnan()):
        return math.inf
    apart = torch.where((a == b) | a.isnan(), 0.0, a - b)
    difference = float(torch.linalg.vector_norm(apart))
    scale = max(float(torch.linalg.vector_norm(a.nan_to_num(0.0))), least * math.sqrt(a.numel()))
    return 0.0 if not difference else difference / scale if scale and math.isfinite(difference) else math.inf


def differences(name: str, original: Path, converted: Path, hide: Hiding = str) -> Iterator[FileDifference]:
    """Where two files of one name differ, by more than the rounding of a text's numbers."""
    data = converted.read_bytes()
    if original.read_bytes() == data or (".py" in name and b"dp2ddp_runtime" in data):
        return  # (in the second case a script keeps a copy of itself)
    ours, theirs = _parts(original), _parts(converted)
    if ours is not None and theirs is not None:
        yield from _by_part(ours, theirs, hide)
        return
    try:
        texts = [path.read_text(encoding="utf-8") for path in (original, converted)]
    except UnicodeDecodeError:
        yield FileDifference("bytes")
        return
    for line in printed.differences(*map(hide, texts)):
        if not line.is_rounding:
            yield FileDifference(
                f"line {line.line}: {shown(line.original)}, converted {shown(line.converted)}", line.size
            )


def _parts(path: Path) -> dict[str, Any] | None:
    """What is in a file that isn't text, by where it is: of checkpoints what they hold, of other archives (NumPy's,
    TorchScript) the arrays and files; None where that isn't known."""
    if not zipfile.is_zipfile(path):
        array = _array(path.read_bytes())
        return None if array is None else {"array": array}
    with zipfile.ZipFile(path) as archive:
        names = {PurePosixPath(name).name for name in archive.namelist()}
        if "data.pkl" in names and "constants.pkl" not in names:  # not TorchScript's, which would be run to be read
            return dict(_leaves(unpickle.load(path)))
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith(_OF_CONTENT)}
    arrays = {name: _array(data) for name, data in files.items()}
    return {name: data if arrays[name] is None else arrays[name] for name, data in files.items()}


def _array(data: bytes) -> torch.Tensor | None:
    """What NumPy has saved; None where it isn't an array of numbers. (Nothing is unpickled.)"""
    if not data.startswith(_NUMPY):
        return None
    try:
        import numpy as np

        return torch.as_tensor(np.load(io.BytesIO(data), allow_pickle=False))
    except (ImportError, TypeError, ValueError):
        return None


def _by_part(ours: Mapping[str, Any], theirs: Mapping[str, Any], hide: Hiding) -> Iterator[FileDifference]:
    floats = [each for each in ours.values() if isinstance(each, torch.Tensor) and each.is_floating_point()]
    least = negligible(float(each.detach().double().square().mean().sqrt()) for each in floats if each.numel())
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        if key not in ours or key not in theirs:
            yield FileDifference(f"{key}{ONLY_IN}{'original' if key in ours else 'converted'})")
            continue
        one, other = ours[key], theirs[key]
        if isinstance(one, str) and isinstance(other, str):
            one, other = hide(one), hide(other)
        relative = _leaf_difference(one, other, least)
        if relative:
            is_tensor = isinstance(one, torch.Tensor)
            values = "" if is_tensor else f" is {shown(one)}, converted {shown(other)}"
            yield FileDifference(key, relative, values)


def _leaf_difference(ours: Any, theirs: Any, least: float) -> float:
    if isinstance(ours, float) and isinstance(theirs, float):
        ours, theirs = (torch.tensor(value, dtype=torch.float64) for value in (ours, theirs))
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        return relative_difference(ours, theirs, least if ours.dim() else 0.0)
    same = type(ours) is type(theirs) and (ours == theirs or repr(ours) == repr(theirs))
    return 0.0 if same else math.inf


def _leaves(value: Any, path: str = "", above: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """What a checkpoint holds, flat: path of keys and indices to tensor, number, string or other object.

    Of torch's modules: their parameters and buffers. Of other objects, and of modules whose class the script or a
    library defines: their attributes, too, and the class. `above` are the objects that `value` is in.
    """
    if type(value).__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biufc":
        value = torch.as_tensor(value)
    items = _items(value)
    if items is None:
        yield path, value
    elif any(value is one for one in above):
        yield path, "(itself)"
    else:
        for step, item in items:
            between = "" if not path or step.startswith(("[", "(")) else "/"
            yield from _leaves(item, f"{path}{between}{step}", (*above, value))


def _items(value: Any) -> list[tuple[str, Any]] | None:
    """The parts of `value` and the steps that lead to them; None: it has none."""
    if isinstance(value, Mapping):  # of parameters by their number, as in a state dict
        names = (str(at if isinstance(key, torch.Tensor) else key) for at, key in enumerate(value))
        return [*zip(names, value.values())]
    if not isinstance(value, Placeholder):
        return _indexed("", value) if isinstance(value, (list, tuple)) else None
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    state = value.state if isinstance(value.state, Mapping) else {"(state)": value.state}
    is_module = state.keys() >= {*_HELD}
    held = [part for name in _HELD for part in state[name].items() if part[1] is not None] if is_module else []
    if is_module and kind.startswith("torch."):
        return held
    made = [*_indexed("(made from)", value.arguments), *_indexed("(items)", value)]
    own = [(str(name), item) for name, item in state.items() if not is_module or not name.startswith("_")]
    return [("(class)", kind), *made, *held, *own]


def _indexed(name: str, values: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(f"{name}[{index}]", item) for index, item in enumerate(values)]
