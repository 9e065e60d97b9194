"""Computes something once for all of libcst's processes, before any of them has written a file.

Each process asks for it at its first file, and writes that file afterwards. So whoever asks first sees the project as
it was, and the others must get the same, not look at what is half written by then.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import pickle
import shutil
import tempfile
import time
from pathlib import Path
from typing import Callable, TypeVar

_FOLDER = "DP2DDP_CODEMOD"
_PATIENCE = 600.0  # seconds, for the process that computes
_T = TypeVar("_T")


def prepare() -> None:
    """To be called in the process that starts the others: makes a folder for them, which goes when it ends."""
    if _FOLDER not in os.environ:
        folder = os.environ[_FOLDER] = tempfile.mkdtemp(prefix="dp2ddp-codemod-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def once(key: str, compute: Callable[[], _T]) -> _T:
    """The value of `compute`, which is run in one process only; or the error that it raised.

    Without `prepare`, there is one process.

    Raises:
        TimeoutError: the process that computes it has not come to an end.
        Exception: whatever `compute` raises.
    """
    folder = os.environ.get(_FOLDER)
    if folder is None:
        return compute()
    place = Path(folder, hashlib.sha256(key.encode()).hexdigest())
    try:
        os.close(os.open(f"{place}.begun", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return _value(_waited_for(place))
    return _value(_computed(place, compute))


def _computed(place: Path, compute: Callable[[], _T]) -> tuple[bool, object]:
    try:
        result: tuple[bool, object] = True, compute()
    except Exception as error:  # noqa: BLE001 - raised again, in every process
        result = False, error
    fresh = place.with_suffix(".fresh")
    fresh.write_bytes(pickle.dumps(result))
    os.replace(fresh, place)
    return result


def _waited_for(place: Path) -> tuple[bool, object]:
    end = time.monotonic() + _PATIENCE
    while not place.exists():
        if time.monotonic() > end:
            raise TimeoutError("the process that looks at the project has not come to an end")
        time.sleep(0.02)
    # Our own folder, which nobody else can write to.
    result: tuple[bool, object] = pickle.loads(place.read_bytes())
    return result


def _value(result: tuple[bool, object]) -> _T:  # type: ignore[type-var,misc,unused-ignore]
    is_fine, value = result
    if is_fine:
        return value  # type: ignore[return-value]
    assert isinstance(value, Exception)
    raise value
