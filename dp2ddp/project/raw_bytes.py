"""The bytes of what is given as a script: a file, a pipe, a device; never without end."""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

from dp2ddp.errors import BadInput

#: No script is longer; what is (a device, a data set with a wrong name) would fill the memory.
LONGEST = 64 << 20
#: So many seconds a pipe may stay silent: as long as a command at its other end may think, but not for ever.
PATIENCE = 30.0
_CHUNK = 1 << 20


def read(path: Path, name: str) -> bytes:
    """The bytes of the file, pipe or device at `path`.

    Args:
        name: how messages call it.

    Raises:
        BadInput: a pipe that nobody writes to, or more than `LONGEST` bytes.
        OSError: it can't be read.
    """
    # Without O_NONBLOCK, opening a pipe would wait for somebody who opens its other end.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        return read_all(descriptor, name, is_pipe=stat.S_ISFIFO(os.fstat(descriptor).st_mode))
    finally:
        os.close(descriptor)


def read_all(descriptor: int, name: str, *, is_pipe: bool = False) -> bytes:
    """All that can be read there. Raises as `read`.

    Args:
        is_pipe: it doesn't block, and is silent until somebody writes.
    """
    data = bytearray()
    while True:
        if is_pipe:
            _wait(descriptor, name)
        chunk = os.read(descriptor, _CHUNK)
        data += chunk
        if not chunk or b"\0" in chunk:  # what is binary need not be read to its end, which may not come
            return bytes(data)
        if len(data) > LONGEST:
            raise BadInput(name, what=f"more than {LONGEST >> 20} MiB, too much for a script")


def _wait(descriptor: int, name: str) -> None:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN | select.POLLHUP)
    if not waiting.poll(PATIENCE * 1000):
        todo = "write the script into it, or give a file"
        raise BadInput(name, what=f"a pipe that nobody has written to for {PATIENCE:g} s", todo=todo)
