"""Plain values as text, so that nothing that a peer sends has to be unpickled.

Whoever can write to a socket could put a program into a pickle, but only values into this.
"""

from __future__ import annotations

import builtins
import datetime
import json
import pathlib
import time
import uuid
from typing import Any

import torch

np: Any
try:
    import numpy as np
except ImportError:  # torch works without NumPy, and so does this runtime
    np = None


def _memory(array: Any) -> torch.Tensor:
    """A NumPy array's or scalar's bytes, as a tensor: they travel as such, and not as text."""
    if array.dtype.hasobject:
        raise TypeError("an array of Python objects can't be sent to other ranks")
    return torch.from_numpy(np.frombuffer(array.tobytes(), np.uint8).copy())


# By name: the types, how such a value is taken apart into others, and how it is made of these again. The first fits.
_KINDS: dict[str, tuple[Any, Any, Any]] = {
    "dict": (dict, lambda value: [list(item) for item in value.items()], dict),
    "struct_time": (time.struct_time, list, time.struct_time),
    "tuple": (tuple, list, tuple),
    "array": (
        () if np is None else (np.ndarray, np.generic),
        lambda value: [value.dtype.str, list(value.shape), _memory(value)],
        lambda parts: np.frombuffer(parts[2].cpu().numpy(), parts[0]).reshape(parts[1]).copy()[()],
    ),
    "set": (set, list, set),
    "bytes": ((bytes, bytearray), lambda value: value.hex(), bytes.fromhex),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "timedelta": (
        datetime.timedelta,
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
    "path": (pathlib.PurePath, str, pathlib.Path),
    "uuid": (uuid.UUID, str, uuid.UUID),
    # What is derived from these:
    "int": (int, int, int),
    "float": (float, float, float),
    "str": (str, str, str),
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
            if isinstance(value, types):
                return {"!" + name: pack(take_apart(value))}
        raise TypeError(
            f"{type(value).__name__} can't be sent to other ranks: only plain values, tensors and arrays can"
        )

    return json.dumps(pack(value), separators=(",", ":"))


def loads(text: str | bytes, tensors: list[torch.Tensor]) -> Any:
    """The value that `dumps` took, from what it returned and its tensors."""

    def back(item: dict[str, Any]) -> Any:
        name, content = next(iter(item.items()), ("", 0))
        if not name.startswith("!"):
            return item
        return tensors[content] if name == "!tensor" else _KINDS[name[1:]][2](content)

    if isinstance(text, bytes):
        text = text.decode()
    return json.loads(text, object_hook=back) if '{"!' in text else json.loads(text)


def told_error(error: BaseException) -> list[Any]:
    """What makes an error again, as JSON takes it: the nearest of Python's own classes, and its arguments."""
    if isinstance(error, SystemExit):  # a message is shown once, here
        return ["SystemExit", [error.code if isinstance(error.code, int) else int(error.code is not None)]]
    if isinstance(error, OSError) and isinstance(error.errno, int):  # by the number Python finds the class
        return ["OSError", [error.errno, error.strerror, *([str(error.filename)] if error.filename else [])]]
    kinds = [each for each in type(error).__mro__ if each.__module__ == "builtins"]
    kind = next(each for each in kinds if not issubclass(each, UnicodeError))  # these aren't made of a text
    text = str(error.args[0] if len(error.args) == 1 else error)
    return [kind.__name__, [text if kind is type(error) else f"{type(error).__name__}: {text}"]]


def error_again(name: str, arguments: list[Any]) -> BaseException:
    """An error that `told_error` has told of. Nothing that a peer names is called but Python's own exceptions."""
    kind: type[BaseException] = getattr(builtins, name)
    return kind(*arguments) if issubclass(kind, BaseException) else RuntimeError(name, *arguments)
