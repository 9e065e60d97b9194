"""Files that a rank opens to write before `setup`: the launcher that started it has come that way, and written them."""

from __future__ import annotations

import builtins
import functools
import io
import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from . import handles

_real_open: Any = builtins.open


def watch(rank: int) -> Callable[[], None]:
    """From now on what is opened for writing goes nowhere, as the launcher has written it.

    Where it can't have done so, as nothing is there (a time is in the name, or the script has moved it on since),
    and where it is no file but a device, a rank writes as ever. What is returned is for `setup` to call: open files
    of rank 0 go on where the launcher's end. (What the launcher has not flushed by then, rank 0 has not either.)
    """
    kept: list[tuple[weakref.ref[IO[Any]], Any, str]] = []

    @functools.wraps(_real_open)
    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        reads = isinstance(file, int) or not set(str(mode)) & set("wax+")
        if reads or kwargs.get("opener") or not Path(os.fsdecode(file)).is_file():
            return _real_open(file, mode, *args, **kwargs)
        if rank != 0 or "+" in mode:
            made = handles.nowhere(file, mode, *args, **kwargs)
        else:
            with tempfile.TemporaryFile() as private:
                made = _real_open(file, mode, *args, opener=lambda *_: os.dup(private.fileno()), **kwargs)
        kept.append((weakref.ref(made), os.path.abspath(file), mode))
        return made

    def go_on() -> None:
        builtins.open = io.open = _real_open
        for reference, path, mode in kept if rank == 0 else ():
            made = reference()
            if made is None or made.closed:
                continue
            own = os.open(path, (os.O_RDWR if "+" in mode else os.O_WRONLY) | (os.O_APPEND if "a" in mode else 0))
            os.lseek(own, os.lseek(made.fileno(), 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(own, made.fileno())
            os.close(own)

    builtins.open = io.open = open_file
    return go_on
