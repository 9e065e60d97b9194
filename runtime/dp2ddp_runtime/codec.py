"""Plain values as text, so that nothing a peer sends has to be unpickled: whoever can write to a socket could put a
program into a pickle, but only values into this."""

from __future__ import annotations

import datetime
import pathlib
import sys
import time
import uuid
from typing import Any

import torch

_TIMES = (datetime.datetime, datetime.date, datetime.time)


def pack(value: Any, tensors: list[torch.Tensor]) -> Any:
    """`value` as something that `json.dumps` takes.

    Args:
        value: None, bools, numbers, text, bytes, dates and times, paths, UUIDs, tensors, NumPy arrays and scalars;
            tuples, lists, sets and dicts of these.
        tensors: gets the tensors and arrays that are in it; they travel by themselves.

    Raises:
        TypeError: something else is in it.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [pack(item, tensors) for item in value]
    if isinstance(value, dict):
        return {"dict": [[pack(key, tensors), pack(item, tensors)] for key, item in value.items()]}
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, time.struct_time):
        return {"struct_time": list(value)}
    if isinstance(value, (tuple, set, frozenset)):
        return {"tuple" if isinstance(value, tuple) else "set": [pack(item, tensors) for item in value]}
    return _pack_leaf(value, tensors)


def _pack_leaf(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, _TIMES):
        return {type(value).__name__: value.isoformat()}
    if isinstance(value, datetime.timedelta):
        return {"timedelta": value.total_seconds()}
    if isinstance(value, pathlib.PurePath):
        return {"path": str(value)}
    if isinstance(value, uuid.UUID):
        return {"uuid": value.hex}
    if isinstance(value, (bool, int, float, str)):  # of a subclass
        return next(kind(value) for kind in (bool, int, float, str) if isinstance(value, kind))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and value.dtype.kind in "biufc":
        tensors.append(torch.frombuffer(bytearray(value.tobytes()) or bytearray(1), dtype=torch.uint8))
        return {"array": [len(tensors) - 1, value.dtype.str, list(value.shape), isinstance(value, numpy.generic)]}
    raise TypeError(f"{type(value).__name__} can't be sent to other ranks: only plain values, tensors and arrays can")


def unpack(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The value that `pack` took, from what it returned and its tensors."""
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "dict":
        return {unpack(key, tensors): unpack(item, tensors) for key, item in content}
    if kind in ("tuple", "set"):
        return (tuple if kind == "tuple" else set)(unpack(item, tensors) for item in content)
    if kind == "array":
        import numpy

        index, dtype, shape, scalar = content
        flat = numpy.frombuffer(bytes(tensors[index].tolist()), dtype=dtype, count=int(numpy.prod(shape)))
        return flat[0] if scalar else flat.reshape(shape).copy()
    return _LEAVES[kind](content) if kind != "tensor" else tensors[content]


_LEAVES: dict[str, Any] = {
    "bytes": bytes.fromhex,
    "complex": lambda parts: complex(*parts),
    "struct_time": time.struct_time,
    "timedelta": lambda seconds: datetime.timedelta(seconds=seconds),
    "path": pathlib.Path,
    "uuid": uuid.UUID,
    **{kind.__name__: kind.fromisoformat for kind in _TIMES},
}
