"""What ranks hold in the place of rank 0's: of files that it writes, or has written, and of folders that it listed."""

from __future__ import annotations

import builtins
import functools
import io
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, Any, Callable

_open, _scandir, _replace = builtins.open, os.scandir, os.replace
#: What modules keep as `open` that are imported before `setup`; it leads on without a frame, by which calls are known.
early: Any = functools.update_wrapper(functools.partial(_open), _open)


class Entry:
    """An `os.DirEntry`, as rank 0 has found it."""

    def __init__(self, told: Any) -> None:
        self.name, self.path, self._is_dir, self._is_file, self._is_link, self._number = told

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return bool(self._is_dir[follow_symlinks])

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return bool(self._is_file[follow_symlinks])

    def is_symlink(self) -> bool:
        return bool(self._is_link)

    def inode(self) -> int:
        return int(self._number)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class Entries(Iterator[Entry], AbstractContextManager["Entries"]):
    """What `os.scandir` gives, of a list that can be told."""

    def __init__(self, told: Any) -> None:
        self.told = told
        self._left: Iterator[Entry] = map(Entry, told)

    def __next__(self) -> Entry:
        return next(self._left)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._left = iter(())


def scandir(path: Any = ".") -> Entries:
    """`os.scandir`, of which rank 0 and the others have the same."""
    with _scandir(path) as found:
        return Entries([_told(each) for each in found])


def _told(each: os.DirEntry[Any]) -> list[Any]:
    asked = (each.is_dir, each.is_file)
    kinds = [[ask(follow_symlinks=follow) for follow in (False, True)] for ask in asked]
    return [each.name, each.path, *kinds, each.is_symlink(), each.inode()]


class Output:
    """What `os.popen` gives. The command runs beside rank 0 alone; what is asked of its output, all ranks hear."""

    def __init__(self, stream: Any, ask: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._stream, self._ask = stream, ask

    def __getattr__(self, name: str) -> Any:
        what = f"os.popen().{name}"
        if not callable(getattr(io.TextIOWrapper, name)):  # `closed`, `encoding`
            return self._ask(what, lambda: getattr(self._stream, name))
        return lambda *args: self._ask(what, lambda: getattr(self._stream, name)(*args))

    def __iter__(self) -> Iterator[str]:
        return iter(self.readline, "")

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def descriptor() -> int:
    """A descriptor of an unlinked temporary file, which takes what another rank's file would."""
    with tempfile.TemporaryFile() as private:
        return os.dup(private.fileno())


class Nowhere(io.FileIO):
    """A raw file of nobody's that keeps the room of what it takes, as a hole, and not the bytes."""

    def __init__(self, name: Any) -> None:
        super().__init__(descriptor(), "w")
        self.name = name

    def write(self, data: Any) -> int:
        count = memoryview(data).nbytes
        end = self.seek(count, os.SEEK_CUR)
        if end > os.fstat(self.fileno()).st_size:
            self.truncate(end)
        return count


def nowhere(
    path: Any, mode: str, buffering: int = -1, encoding: Any = None, errors: Any = None, newline: Any = None, *_: Any
) -> IO[Any]:
    """What `open` gives, of the same kind, that leads nowhere; one that reads as well has a copy of its own."""
    mode = mode.replace("x", "w")
    if "+" in mode:
        with tempfile.TemporaryFile() as copy:
            if "w" not in mode:
                with suppress(OSError), _open(path, "rb") as found:  # not there, or gone
                    shutil.copyfileobj(found, copy)
                copy.seek(0)
            return _open(path, mode, buffering, encoding, errors, newline, opener=lambda *_: os.dup(copy.fileno()))
    _open(os.devnull, mode, buffering, encoding, errors, newline).close()  # its errors
    raw: Any = Nowhere(path)
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


def hold_early_files(rank: int) -> Callable[[], None]:
    """From now on what is opened for writing goes nowhere, as the launcher has written it.

    Where it can't have done so, as nothing is there (a time is in the name, or the script has moved it on since),
    and where it is no file but a device, a rank writes as ever. What is returned is for `setup` to call: open files
    of rank 0 go on where the launcher's end. (What the launcher has not flushed by then, rank 0 has not either.)
    """
    kept: list[tuple[weakref.ref[IO[Any]], Any, str]] = []

    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        reads = isinstance(file, int) or not set(str(mode)) & set("wax+")
        if reads or kwargs.get("opener") or not Path(os.fsdecode(file)).is_file():
            return _open(file, mode, *args, **kwargs)
        private = {**kwargs, "opener": lambda *_: descriptor()}
        made = nowhere(file, mode, *args, **kwargs) if rank or "+" in mode else _open(file, mode, *args, **private)
        kept.append((weakref.ref(made), os.path.abspath(file), mode))
        return made

    def go_on() -> None:
        lead_early(_open)
        builtins.open = io.open = _open
        for reference, path, mode in kept if rank == 0 else ():
            made = reference()
            if made is None or made.closed:
                continue
            own = os.open(path, (os.O_RDWR if "+" in mode else os.O_WRONLY) | (os.O_APPEND if "a" in mode else 0))
            os.lseek(own, os.lseek(made.fileno(), 0, os.SEEK_CUR), os.SEEK_SET)
            os.dup2(own, made.fileno())
            os.close(own)

    lead_early(open_file)
    builtins.open = io.open = early
    return go_on


def lead_early(function: Callable[..., Any]) -> None:
    """From now on `early` is this function."""
    early.__setstate__((function, (), {}, vars(early)))
