"""Files and writers, on rank 0 alone. Nothing here is a collective, or makes rank 0 wait for another rank.

The other ranks get stand-ins that take every call, because every rank runs every line.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import io
import itertools
import json
import logging
import os
import pathlib
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import IO, Any, Callable, TypeVar, Union, cast

from . import file_sync, world
from .deferred import settle
from .place import here

T = TypeVar("T")
Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]

_turns = itertools.count(1)


def open(file: Path | int, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
    """`open`, but a file is written on rank 0 alone, and read once rank 0 has written what this rank has passed.

    On other ranks a writing mode gives a handle of the same kind that leads nowhere; a mode that reads as well ("w+",
    "r+", ...) gives a private copy.

    Args:
        file, mode, *args, **kwargs: as Python's `open` takes them.

    Raises:
        OSError, ValueError: as Python's `open`; on rank 0 alone if the file is to be written.
        PeerError: rank 0 hasn't written the file in time.

    See https://docs.python.org/3/library/functions.html#open.
    """
    store = None if isinstance(file, int) else file_sync.shared()
    if not set(mode) & set("wax+"):
        if store is not None:
            file_sync.before_read(file)
        return builtins.open(file, mode, *args, **kwargs)
    content = b""
    if store is not None and "+" in mode and set(mode) & set("ra"):
        content = _content_on_rank_0(cast("Path", file), store)
    if world.is_main():
        handle = builtins.open(file, mode, *args, **kwargs)  # noqa: SIM115
    else:
        with tempfile.NamedTemporaryFile() as copy:
            copy.write(content)
            copy.flush()
            path = copy.name if "+" in mode else os.devnull
            handle = builtins.open(path, mode.replace("x", "w"), *args, **kwargs)  # noqa: SIM115
        _raw(handle).name = file
    if store is not None:
        _on_close(handle, functools.partial(file_sync.wrote, here().line))
    return handle


def _content_on_rank_0(path: Path, store: Any) -> bytes:
    """What rank 0 finds in a file that it is about to change; when another rank looks, it may have changed it."""
    key = f"content{next(_turns)}"
    if world.is_main():
        content = pathlib.Path(os.fsdecode(path)).read_bytes() if os.path.exists(path) else b""
        store.set(key, json.dumps(content.hex()))
        return content
    return bytes.fromhex(file_sync.hear(store, key, f"rank 0 to open {path!r}"))


def _raw(handle: IO[Any]) -> Any:
    """The `io.FileIO` below a file's text and buffer layers."""
    buffer = getattr(handle, "buffer", handle)
    return getattr(buffer, "raw", buffer)


def _on_close(handle: IO[Any], callback: Callable[[], None]) -> None:
    """Call `callback` once `handle` has been closed, by whatever way, and its last byte is written."""
    # The layers above call their raw file's `close` when they are done. No cycle, or closing would wait for the
    # garbage collector where the script leaves it to the last reference.
    raw = weakref.ref(_raw(handle))

    def close() -> None:
        file = raw()
        if file is not None and not file.closed:
            io.FileIO.close(file)
            callback()

    _raw(handle).close = close


def main_only(target: T) -> T:
    """`target` for rank 0 alone: a function, a class or an object whose calls have effects and no results that count.

    Examples: `main_only(SummaryWriter)("runs/x")`, `main_only(os.mkdir)(path)`, `main_only(shutil.copyfile)(a, b)`,
    `wandb = main_only(wandb)`.

    Deferred batches among the arguments of its calls are gathered first, on every rank. Other ranks' reads wait for
    the calls of a function or class.

    Returns:
        What does so, to be called on every rank. On rank 0 it gives what `target` gives, elsewhere an `Absent`, which
        takes every call, attribute and `with`, and is true; of a `logging.Handler` it makes a `logging.NullHandler`.
    """
    if world.world_size() == 1:
        return target
    present: Any = target
    if not world.is_main():
        present = Absent(getattr(target, "__qualname__", getattr(target, "__name__", type(target).__qualname__)))
        if inspect.isclass(target) and issubclass(target, logging.Handler):
            present = lambda *args, **kwargs: logging.NullHandler()  # noqa: E731
    is_called = inspect.isroutine(target) or inspect.isclass(target) or isinstance(target, functools.partial)
    return cast("T", _Called(present) if is_called or isinstance(target, ModuleType) else _gathering(present))


class _Called:
    """A function, class or module of rank 0's, or its stand-in."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = settle((args, kwargs))
        with file_sync.writing():
            return _gathering(self._target(*args, **kwargs))

    def __getattr__(self, attribute: str) -> Any:
        return _gathering_method(getattr(self._target, attribute))


def _gathering(made: Any) -> Any:
    """An object of rank 0's, whose public methods gather deferred batches first, by a class derived from its own."""
    kind = type(made)
    if kind.__module__ == "builtins" or isinstance(made, (Absent, logging.Handler, io.IOBase)):
        return made

    def getattribute(self: Any, name: str) -> Any:
        found = kind.__getattribute__(self, name)
        return found if name.startswith("_") else _gathering_method(found)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__getattribute__": getattribute}
    with suppress(TypeError):  # its layout is fixed in C: what is written in C looks by itself, or not at all
        made.__class__ = type(kind.__name__, (kind,), names)
    return made


def _gathering_method(found: Any) -> Any:
    if not inspect.isroutine(found):
        return found

    @functools.wraps(found)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = settle((args, kwargs))
        return found(*args, **kwargs)

    return call


class Absent:
    """What other ranks hold in place of an object that only rank 0 has.

    It can be called, entered, indexed, iterated (nothing comes) and asked for any attribute; what is set is kept. It is
    true, as the object on rank 0 is, so that `if writer:` goes the same way. It is no number: arithmetic on it raises
    `TypeError`, because a result that only rank 0 has must not reach the training.
    """

    def __init__(self, name: str) -> None:
        self._absent_name = name
        self._absent_items: dict[Any, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Absent:
        settle((args, kwargs))
        return Absent(f"{self._absent_name}(...)")

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        child = Absent(f"{self._absent_name}.{attribute}")
        setattr(self, attribute, child)
        return child

    def __getitem__(self, key: Any) -> Any:
        return self._absent_items.get(key, Absent(f"{self._absent_name}[{key!r}]"))

    def __setitem__(self, key: Any, value: Any) -> None:
        self._absent_items[key] = value

    def __delitem__(self, key: Any) -> None:
        self._absent_items.pop(key, None)

    def __contains__(self, key: Any) -> bool:
        return key in self._absent_items

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Absent:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __repr__(self) -> str:
        return f"<{self._absent_name}: on rank 0 alone>"


@contextmanager
def main_first() -> Iterator[None]:
    """`with main_first(): ...`: local rank 0 of each machine runs the body first, the others after it (downloads).

    Raises:
        BaseException: on the other ranks, what the body raised on local rank 0, as the nearest of Python's own
            exceptions; they don't run it then.
        PeerError: local rank 0 isn't through in time.
    """
    store = file_sync.shared()
    if store is None:
        yield
        return
    key = f"first{next(_turns)}/{world.rank() - world.local_rank()}"
    if world.local_rank() == 0:
        told = None
        try:
            yield
        except BaseException as error:
            told = _told(error)
            raise
        finally:
            store.set(key, json.dumps(told))
        return
    told = file_sync.hear(store, key, "local rank 0 in main_first()")
    if told is not None:
        raise _retold(*told) from file_sync.PeerError("it failed in main_first() on local rank 0")
    yield


def _told(error: BaseException) -> tuple[str, Any]:
    """The nearest of Python's own exceptions and what it is made from, to tell other ranks."""
    if isinstance(error, SystemExit):
        return "SystemExit", error.code if isinstance(error.code or 0, int) else 1  # a message is shown once, here
    kind = next(filter(_takes_text, type(error).__mro__), RuntimeError)
    text = error.args[0] if isinstance(error, KeyError) and error.args else error  # its own text is that in quotes
    return kind.__name__, f"{text}" if type(error) is kind else f"{type(error).__name__}: {text}"


def _retold(name: str, text: Any) -> BaseException:
    """The exception to raise. What is no such pair may be another user's, who can reach the store."""
    if name == "SystemExit":
        return SystemExit(text)
    kind = getattr(builtins, name)
    return cast("Exception", kind(text) if _takes_text(kind) else RuntimeError(text))


def _takes_text(kind: Any) -> bool:
    """Whether `kind` is one of Python's own exceptions, says more than `Exception`, and is made from a text."""
    with suppress(TypeError):
        return (
            issubclass(kind, Exception)
            and kind not in (Exception, RuntimeError)
            and kind.__module__ == "builtins"
            and bool(kind("x"))
        )
    return False
