"""Copies to the host: how many, and which lines did it."""

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

_OWN = (
    str(Path(torch.__file__).parent),
    *(str(path) for path in Path(__file__).parent.glob("[!t]*.py")),  # but for the tests
    threading.__file__,
)
_DEPTH = 4


class Copy(NamedTuple):
    """Copies from a device to the host that the same lines have made.

    Attributes:
        lines: `file.py:12`, the innermost first: up to four that aren't torch's own.
        times: how often.
    """

    lines: tuple[str, ...]
    times: int


_lock = threading.Lock()
_times: Counter[tuple[str, ...]] = Counter()


def copies() -> list[Copy]:
    """The copies since the start or the last `reset_copies`."""
    with _lock:
        return [Copy(*each) for each in _times.items()]


def reset_copies() -> None:
    """Count copies anew from here on."""
    with _lock:
        _times.clear()


def listen(library: ctypes.CDLL) -> None:
    """Have the native half tell of copies."""
    library.pretend_on_copy(_callback)


def _note(source: int, target: int, size: int) -> None:
    if target < 0:
        lines = tuple(_lines(sys._getframe().f_back))  # a thread of gloo's has no caller
        with _lock:
            _times[lines] += 1


def _lines(frame: FrameType | None) -> Iterator[str]:
    left = _DEPTH
    while frame is not None and left:
        if not frame.f_code.co_filename.startswith(_OWN):
            yield f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            left -= 1
        frame = frame.f_back


_callback: Any = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, ctypes.c_int64)(_note)
