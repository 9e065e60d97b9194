"""Handles of files that another rank writes: they take what is written, and it goes nowhere."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import shutil
import tempfile
import weakref
from typing import IO, Any, Callable

_open = builtins.open


class Nowhere(io.FileIO):
    """A raw file that counts what it takes, and keeps it only once somebody has asked for its descriptor."""

    def __init__(self) -> None:
        super().__init__(os.devnull, "w")
        self._place = self._size = 0
        self._kept: Any = None

    def write(self, data: Any) -> int:
        """Take bytes."""
        count = memoryview(data).nbytes
        if self._kept is not None:
            self._kept.write(data)
        self._place += count
        self._size = max(self._size, self._place)
        return count

    def fileno(self) -> int:
        """A descriptor that can be written to, and synchronised, by what doesn't go through Python."""
        if self.closed:
            return super().fileno()
        if self._kept is None:
            self._kept = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - as long as this one
        return int(self._kept.fileno())

    def isatty(self) -> bool:
        """It is no terminal."""
        return False

    def seekable(self) -> bool:
        """As a file is."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move, as in a file."""
        self._place = offset + (0, self._place, self._size)[whence]
        if self._kept is not None:
            self._kept.seek(self._place)
        return self._place

    def tell(self) -> int:
        """The place in the file."""
        return self._place if self._kept is None else max(self._place, int(self._kept.tell()))

    def truncate(self, size: int | None = None) -> int:
        """Cut the file, as far as anybody can tell."""
        self._size = self._place if size is None else size
        return self._size


def handle(
    path: Any, mode: str, buffering: int = -1, encoding: Any = None, errors: Any = None, newline: Any = None, *_: Any
) -> IO[Any]:
    """What `open` gives, of the same kind and name, that leads nowhere; one that reads as well has a copy of its own.

    Raises:
        ValueError: as `open`.
    """
    if "+" in mode:
        with tempfile.NamedTemporaryFile() as copy:
            if not set(mode) & set("wx"):
                with contextlib.suppress(OSError), _open(path, "rb") as found:  # not there, or gone
                    shutil.copyfileobj(found, copy)
                copy.flush()
            private = _open(copy.name, mode.replace("x", "w"), buffering, encoding, errors, newline)
        raw_of(private).name = path
        return private
    _open(os.devnull, mode.replace("x", "w"), buffering, encoding, errors, newline).close()  # its errors
    raw: Any = Nowhere()
    raw.name = path
    if buffering == 0:
        return raw  # type: ignore[no-any-return]
    buffer = io.BufferedWriter(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
    if "b" in mode:
        return buffer
    text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode  # type: ignore[misc]
    return text


def raw_of(file: IO[Any]) -> Any:
    """The `io.FileIO` below a file's text and buffer layers."""
    buffer = getattr(file, "buffer", file)
    return getattr(buffer, "raw", buffer)


def on_close(file: IO[Any], callback: Callable[[], None]) -> None:
    """Call `callback` once `file` has been closed, by whatever way, and its last byte is written."""
    # The layers above call their raw file's `close` when they are done. No cycle, or closing would wait for the
    # garbage collector where the script leaves it to the last reference.
    raw = weakref.ref(raw_of(file))

    def close() -> None:
        found = raw()
        if found is not None and not found.closed:
            io.FileIO.close(found)
            callback()

    raw_of(file).close = close
