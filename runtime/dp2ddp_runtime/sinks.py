"""Files and writers, on rank 0 alone. No sink contains a collective, and none makes a rank wait for another one.

The other ranks get stand-ins that take every call, because every rank runs every line.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import io
import json
import logging
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Callable, TypeVar, cast

from . import journal, world
from .deferred import settle

T = TypeVar("T")


def open(
    file: journal.Path | int,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Callable[[str, int], int] | None = None,
) -> IO[Any]:
    """`open`, but a file is written on rank 0 alone, and read once rank 0 has written what this rank has passed.

    On other ranks a writing mode gives a handle of the same kind that leads nowhere; a mode that reads as well ("w+",
    "r+", ...) gives a private copy.

    Args: as Python's `open`.

    Raises:
        OSError, ValueError: as Python's `open`; on rank 0 alone if the file is to be written.
        PeerError: rank 0 hasn't written the file in time.
    """
    how: dict[str, Any] = {"buffering": buffering, "encoding": encoding, "errors": errors, "newline": newline}
    writes = set(mode) & set("wax+")
    path = None if isinstance(file, int) else file
    if path is not None and (not writes or "r" in mode):
        journal.before_read(path)
    content = _shared_content(path) if path is not None and "+" in mode and set(mode) & set("ra") else b""
    if not writes or world.is_main():
        handle = builtins.open(file, mode, closefd=closefd, opener=opener, **how)  # noqa: SIM115
    elif "+" in mode:
        handle = _private_copy(content, mode, how)
    else:
        handle = builtins.open(os.devnull, mode.replace("x", "w"), **how)  # noqa: SIM115
        _raw(handle).name = file
    if writes and path is not None and journal.store() is not None and not journal.muted_here():
        _on_close(handle, functools.partial(journal.wrote, os.path.abspath(path)))
    return handle


def main_only(target: T) -> T:
    """`target` for rank 0 alone: a function, a class or an object whose calls have effects and no results that count.

    Examples: `main_only(SummaryWriter)("runs/x")`, `main_only(os.mkdir)(path)`, `main_only(shutil.copyfile)(a, b)`,
    `wandb = main_only(wandb)`.

    Deferred batches among the arguments of its calls are gathered first, on every rank.

    Returns:
        On rank 0 the same thing; calls of a function or class are noted, so that other ranks' reads wait for the paths
        among the arguments. Elsewhere an `Absent`, which takes every call, attribute and `with`, and is true. Of a
        `logging.Handler` it makes a `logging.NullHandler`.
    """
    if world.world_size() == 1 and world.is_main():
        return target
    noted = inspect.isroutine(target) or inspect.isclass(target) or isinstance(target, functools.partial)
    if world.is_main():
        return cast("T", _Noted(target) if noted else _looks_together(target))
    return cast("T", Absent(_name(target), target if noted else None))


@contextmanager
def main_first() -> Iterator[None]:
    """`with main_first(): ...`: local rank 0 of each machine runs the body first, the others after it (downloads).

    Raises:
        BaseException: on the other ranks, what the body raised on local rank 0, as the nearest of Python's own
            exceptions; they don't run it then.
        PeerError: local rank 0 isn't through in time.
    """
    store = journal.store()
    if store is None or journal.muted_here():
        yield
        return
    key = f"first{_next_turn()}/{world.rank() - world.local_rank()}"
    if world.local_rank() == 0:
        try:
            yield
        except BaseException as error:
            store.set(key + "/error", _told(error))
            store.add(key + "/failed", 1)
            store.add(key, 1)
            raise
        store.add(key, 1)
        return
    journal.wait_until(lambda: store.add(key, 0) > 0, world.current().timeout, "local rank 0 in main_first()")
    if store.add(key + "/failed", 0):
        raise _retold(store.get(key + "/error")) from journal.PeerError("it failed in main_first() on local rank 0")
    yield


class Absent:
    """What other ranks hold in place of an object that only rank 0 has.

    It can be called, entered, indexed, iterated (nothing comes) and asked for any attribute; what is set is kept. It is
    true, as the object on rank 0 is, so that `if writer:` goes the same way. It is no number: arithmetic on it raises
    `TypeError`, because a result that only rank 0 has must not reach the training.
    """

    def __init__(self, name: str, made_by: object = None) -> None:
        self.__dict__["_absent"] = (name, made_by, {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name, made_by, _ = self.__dict__["_absent"]
        settle((args, kwargs))
        if made_by is not None:
            _note(args, kwargs)
            if inspect.isclass(made_by) and issubclass(made_by, logging.Handler):
                return logging.NullHandler()
        return Absent(f"{name}(...)")

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        child = Absent(f"{self.__dict__['_absent'][0]}.{attribute}")
        self.__dict__[attribute] = child
        return child

    def __getitem__(self, key: Any) -> Any:
        name, _, items = self.__dict__["_absent"]
        return items[key] if key in items else Absent(f"{name}[{key!r}]")

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__dict__["_absent"][2][key] = value

    def __delitem__(self, key: Any) -> None:
        self.__dict__["_absent"][2].pop(key, None)

    def __contains__(self, key: Any) -> bool:
        return key in self.__dict__["_absent"][2]

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
        return f"<{self.__dict__['_absent'][0]}: on rank 0 alone>"


class _Noted:
    """On rank 0: a function or class whose calls are noted in the journal."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = settle((args, kwargs))
        try:
            with journal.muted():
                return _looks_together(self._target(*args, **kwargs))
        finally:
            _note(args, kwargs)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._target, attribute)


class _Module:
    """On rank 0: a module whose functions gather the deferred batches among their arguments before they look."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return _settling(getattr(self._module, name))


def _looks_together(made: Any) -> Any:
    """On rank 0: an object whose methods do so. It stays the object that it is, of a class derived from its own."""
    if isinstance(made, ModuleType):
        return _Module(made)
    kind = type(made)
    if kind.__module__ == "builtins" or isinstance(made, (logging.Handler, io.IOBase)):
        return made
    with suppress(TypeError):  # its layout is fixed in C: what is written in C looks by itself, or not at all
        made.__class__ = _class_that_looks_together(kind)
    return made


def _class_that_looks_together(kind: Any) -> Any:
    def getattribute(self: Any, name: str) -> Any:
        found = kind.__getattribute__(self, name)
        return _settling(found) if not name.startswith("_") else found

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__getattribute__": getattribute}
    return type(kind.__name__, (kind,), names)


def _settling(function: Any) -> Any:
    if not inspect.isroutine(function):
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = settle((args, kwargs))
        return function(*args, **kwargs)

    return call


def _note(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note a write to each argument that is a path, or a string that may be one."""
    for argument in (*args, *kwargs.values()):
        is_text = isinstance(argument, (str, bytes))
        if isinstance(argument, os.PathLike) or (is_text and _may_be_path(argument)):
            # Strings that are no paths must not fill the store.
            journal.wrote(argument, publish=not is_text or os.path.lexists(argument))


def _may_be_path(text: str | bytes) -> bool:
    text = os.fsdecode(text)
    return 0 < len(text) < 1024 and "\0" not in text and (os.sep in text or "." in text)


def _name(target: object) -> str:
    return getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or type(target).__qualname__


def _private_copy(content: bytes, mode: str, how: dict[str, Any]) -> IO[Any]:
    handle = tempfile.TemporaryFile("w+" + "b" * ("b" in mode), **how)  # noqa: SIM115
    _raw(handle).write(content)
    handle.seek(0, os.SEEK_END if "a" in mode else os.SEEK_SET)
    return handle


def _shared_content(path: journal.Path) -> bytes:
    """What rank 0 finds in a file that it is about to change; when another rank looks, it may have changed it."""
    store = journal.store()
    if store is None or journal.muted_here():
        return b""
    key = f"content{_next_turn()}"
    if world.is_main():
        found = Path(os.fsdecode(path)).read_bytes() if os.path.exists(path) else b""
        store.set(key, found.hex())
        return found
    return bytes.fromhex(store.get(key).decode())


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


_turns = 0


def _next_turn() -> int:
    global _turns
    _turns += 1
    return _turns


def _told(error: BaseException) -> str:
    """An error as text, for another rank. Never pickled: whoever can reach the store could have put it there."""
    if isinstance(error, SystemExit):
        code = error.code or 0
        return json.dumps(["SystemExit", code if isinstance(code, int) else 1])  # a message is shown once, here
    kind = next(filter(_takes_text, type(error).__mro__), RuntimeError)
    text = error.args[0] if isinstance(error, KeyError) and error.args else error  # its own text is that in quotes
    return json.dumps([kind.__name__, f"{text}" if type(error) is kind else f"{type(error).__name__}: {text}"])


def _retold(told: bytes) -> BaseException:
    """The error to raise for another rank's."""
    name, text = json.loads(told)
    if name == "SystemExit":
        return SystemExit(int(text))
    kind = getattr(builtins, name)
    return cast("Exception", kind(text) if _takes_text(kind) else RuntimeError(text))


def _takes_text(kind: Any) -> bool:
    """Whether `kind` is one of Python's own exceptions, says more than `Exception`, and is made from a text."""
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or kind is Exception:
        return False
    try:
        return kind.__module__ == "builtins" and kind("") is not None
    except TypeError:
        return False
