"""Plain values as bytes, without pickle.

Whoever reaches a socket could put a program into a pickle, but only values into this.
"""

from __future__ import annotations

import datetime
import json
import pathlib
import time
import uuid
from collections.abc import Sequence
from typing import Any

import torch

np: Any
try:
    import numpy as np
except ImportError:  # torch works without NumPy, and so does this runtime
    np = None


def _array(parts: Any) -> Any:
    """The NumPy array, or scalar, of its type, shape and bytes."""
    kind, shape, memory = parts
    data = memory.numpy().tobytes() if 0 not in shape else b""  # (of an empty one a byte travels)
    return np.frombuffer(data, kind).reshape(shape).copy()[()]


def _memory(array: Any) -> Any:
    if array.dtype.hasobject:
        raise TypeError("an array of Python objects can't be sent to other ranks")
    data = torch.frombuffer(bytearray(array.tobytes() or b"\0"), dtype=torch.uint8)
    return [array.dtype.str, list(array.shape), data]


# By name: the types, how such a value is taken apart into others, and how it is made of these again. The first fits.
_KINDS: dict[str, tuple[Any, Any, Any]] = {
    "dict": (dict, lambda value: [list(item) for item in value.items()], dict),
    "struct_time": (time.struct_time, list, time.struct_time),
    "tuple": (tuple, list, tuple),
    "array": (() if np is None else (np.ndarray, np.generic), _memory, _array),
    "frozenset": (frozenset, list, frozenset),
    "set": (set, list, set),
    "bytearray": (bytearray, bytearray.hex, bytearray.fromhex),
    "bytes": (bytes, bytes.hex, bytes.fromhex),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "timedelta": (datetime.timedelta, lambda d: [d.days, d.seconds, d.microseconds], lambda d: datetime.timedelta(*d)),
    "path": (pathlib.PurePath, str, pathlib.Path),
    "uuid": (uuid.UUID, str, uuid.UUID),
    # What is derived from these:
    "int": (int, int, int),
    "float": (float, float, float),
    "str": (str, str.__str__, str),  # (of an `Enum` of texts, too, its own text)
}


def dumps(value: Any, tensors: list[torch.Tensor]) -> str:
    """`value` as one line of JSON.

    Args:
        value: None, bools, numbers, text, bytes, dates and times, paths, UUIDs, tensors, NumPy arrays and scalars;
            tuples, lists, sets and dicts of these.
        tensors: gets the tensors and arrays that are in it; they travel by themselves.

    Raises:
        TypeError: something else is in it.
    """

    def pack(value: Any) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, list):
            return [*map(pack, value)]
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return {"!tensor": len(tensors) - 1}
        for name, (types, take_apart, _) in _KINDS.items():
            if isinstance(value, types) and not hasattr(value, "_fields"):  # a named tuple's class isn't known there
                return {"!" + name: pack(take_apart(value))}
        can = "only plain values, tensors and arrays can (a loader of others takes no `rows=True`)"
        raise TypeError(f"{type(value).__name__} can't be sent to other ranks: {can}")

    return json.dumps(pack(value), separators=(",", ":"))


def loads(text: str, tensors: list[torch.Tensor]) -> Any:
    """The value that `dumps` took, from what it returned and its tensors."""

    def back(item: dict[str, Any]) -> Any:
        name, content = next(iter(item.items()), ("", 0))
        if not name.startswith("!"):
            return item
        return tensors[content] if name == "!tensor" else _KINDS[name[1:]][2](content)

    return json.loads(text, object_hook=back) if '{"!' in text else json.loads(text)


def encode(value: Any) -> bytes:
    """`value`, as `dumps` takes it, with its tensors' bytes: for a store."""
    tensors: list[torch.Tensor] = []
    return packed([dumps(value, tensors)], tensors)


def decode(data: bytes) -> Any:
    """The value that `encode` took. Tensors come back on the CPU."""
    (text,), tensors = unpacked(data)
    return loads(text, tensors)


def packed(plain: Sequence[Any], tensors: Sequence[torch.Tensor]) -> bytes:
    """What JSON takes, and tensors, as bytes."""
    head = json.dumps([*plain, [[str(t.dtype)[6:], [*t.shape]] for t in tensors]]).encode()
    return b"".join([len(head).to_bytes(8, "little"), head, *map(memory, tensors)])


def unpacked(data: bytes) -> tuple[list[Any], list[torch.Tensor]]:
    """What `packed` took. Tensors come back on the CPU."""
    end = 8 + int.from_bytes(data[:8], "little")
    *plain, kinds = json.loads(bytes(data[8:end]))
    tensors, rest = [], memoryview(data)[end:]
    for dtype, shape in kinds:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
        size = tensor.numel() * tensor.element_size()
        fill(tensor, rest[:size])
        tensors.append(tensor)
        rest = rest[size:]
    return plain, tensors


def memory(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().as_strided((tensor.numel(),), (1,))
    return bytes(flat.view(torch.uint8).numpy().data) if np is not None else bytes(flat.view(torch.uint8).tolist())


def fill(tensor: torch.Tensor, data: bytes | bytearray | memoryview) -> None:
    """Put bytes into a contiguous tensor on the CPU."""
    if len(data):
        tensor.view(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
