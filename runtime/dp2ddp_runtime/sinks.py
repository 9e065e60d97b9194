"""Files that lead nowhere, for other ranks, in the place of those that rank 0 writes."""

from __future__ import annotations

import atexit
import builtins
import functools
import hashlib
import io
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from typing import IO, Any, Callable

from .acting import acting
from .disk import disk
from .whose import resolved

_open, _os_open, _replace = builtins.open, os.open, os.replace


def descriptor(path: Any = None) -> int:
    """A descriptor of an unlinked temporary file, which takes what another rank's file would.

    Given a path, it begins as a copy of what was there before this rank has come to change it.
    """
    with tempfile.TemporaryFile() as private:
        if path is not None:
            _copy_into(private, path)
        return os.dup(private.fileno())


def named_descriptor(path: Any, keeps: bool) -> int:
    """The same, of a file that has a name: who locks files (filelock) takes one without for deleted.

    A path has the same file each time. With `keeps` it begins as a copy of what was there.
    """
    name = os.path.join(_folder(os.getpid()), hashlib.sha256(os.fsencode(path)).hexdigest())
    with acting("own"), _open(name, "wb") as private:
        if keeps:
            _copy_into(private, path)
        return _os_open(name, os.O_RDWR)


@functools.cache
def _folder(process: int) -> str:
    """For files of this process, with which it goes."""
    folder = tempfile.mkdtemp(prefix="dp2ddp-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _copy_into(private: IO[bytes], path: Any) -> None:
    was = disk.path_of_content(resolved(os.path.abspath(os.fsdecode(path))), 1)
    with suppress(OSError), _open(was, "rb") as found:  # not there, or gone
        shutil.copyfileobj(found, private)
    private.seek(0)


class Nowhere(io.FileIO):
    """A raw file of nobody's that keeps the room of what it takes, as a hole, and not the bytes.

    Args:
        name: as the script calls it.
        size: at which it begins, where it is appended to.
    """

    def __init__(self, name: Any, size: int) -> None:
        super().__init__(descriptor(), "w")
        self.name = name
        self.seek(size)

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        end = self.seek(count, os.SEEK_CUR)
        if end > os.fstat(self.fileno()).st_size:
            self.truncate(end)
        return count


def nowhere(
    size: int,
    path: Any,
    mode: str,
    buffering: int = -1,
    encoding: Any = None,
    errors: Any = None,
    newline: Any = None,
    *_: Any,
) -> IO[Any]:
    """What `open` gives, of the same kind, that leads nowhere; one that reads as well has a copy of its own.

    Args:
        size: of the file that is appended to.
        path, ...: as `open` takes them.
    """
    mode = mode.replace("x", "w")
    if "+" in mode:
        own = descriptor(None if "w" in mode else path)
        return _open(path, mode, buffering, encoding, errors, newline, opener=lambda *_: own)
    _open(os.devnull, mode, buffering, encoding, errors, newline).close()  # its errors
    raw: Any = Nowhere(path, size if "a" in mode else 0)
    if buffering == 0:
        return raw  # type: ignore[no-any-return]
    buffer = io.BufferedWriter(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
    if "b" in mode:
        return buffer
    text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode  # type: ignore[misc]
    return text


def whole(path: Any, mode: str, *args: Any, **kwargs: Any) -> IO[Any]:
    """What `open` gives, which takes its name when it is closed: nobody finds a part of it."""
    if os.path.exists(path) and not os.path.isfile(path):  # a device, or an error
        return _open(path, mode, *args, **kwargs)
    file = _open(new := f"{os.fsdecode(path)}.{os.urandom(4).hex()}", mode, *args, **kwargs)
    on_close(file, functools.partial(_replace, new, path))
    return file


def on_close(file: IO[Any], callback: Callable[[], None]) -> None:
    """Call `callback` once `file` has been closed, by whatever way, and its last byte is written."""
    # The layers above call their raw file's `close` when they are done. No cycle, or closing would wait for the
    # garbage collector where the script leaves it to the last reference.
    buffer: Any = getattr(file, "buffer", file)
    raw = getattr(buffer, "raw", buffer)
    weak = weakref.ref(raw)

    def close() -> None:
        found = weak()
        if found is not None and not found.closed:
            io.FileIO.close(found)
            callback()

    raw.close = close
