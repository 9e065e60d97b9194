"""Copies between devices, and between a device and the host: how many bytes, and which lines did it."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

HOST = "cpu"
_OWN = (
    str(Path(torch.__file__).parent),
    *(str(path) for path in Path(__file__).parent.glob("[!t]*.py")),  # but for the tests
    threading.__file__,
)
_DEPTH = 4


class Copy(NamedTuple):
    """Copies from one device to another that the same lines have made.

    Attributes:
        source: `cuda:1`, or `cpu`.
        target: likewise.
        lines: `file.py:12`, the innermost first: up to four that aren't torch's own.
        times: how often.
        bytes: how many in all.
    """

    source: str
    target: str
    lines: tuple[str, ...]
    times: int
    bytes: int


_lock = threading.Lock()
_times: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
_bytes: Counter[tuple[str, str, tuple[str, ...]]] = Counter()


def copies(source: str | None = None, target: str | None = None) -> list[Copy]:
    """The copies since the start or the last `reset_copies`; those from `source` or to `target` only, if asked."""
    with _lock:
        return [
            Copy(*key, times, _bytes[key])
            for key, times in _times.items()
            if source in (None, key[0]) and target in (None, key[1])
        ]


def reset_copies() -> None:
    """Count copies anew from here on."""
    with _lock:
        _times.clear()
        _bytes.clear()


def listen(library: ctypes.CDLL) -> None:
    """Have the native half tell of copies."""
    library.pretend_on_copy(_callback)


def _note(source: int, target: int, size: int) -> None:
    # A thread of autograd's own has no caller.
    key = (_name(source), _name(target), tuple(_lines(sys._getframe().f_back)))
    with _lock:
        _times[key] += 1
        _bytes[key] += size


def _name(index: int) -> str:
    return HOST if index < 0 else f"cuda:{index}"


def _lines(frame: FrameType | None) -> Iterator[str]:
    left = _DEPTH
    while frame is not None and left:
        if not frame.f_code.co_filename.startswith(_OWN):
            yield f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            left -= 1
        frame = frame.f_back


_callback: Any = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, ctypes.c_int64)(_note)
