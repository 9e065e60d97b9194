"""Files and writers, on rank 0 alone. Nothing here is a collective, or makes rank 0 wait for another rank.

The other ranks get stand-ins that take every call, because every rank runs every line.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import io
import logging
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

from ..base import codec, world
from ..batches.deferred import materialize
from ..ranks import file_sync
from . import hands

T = TypeVar("T")


def main_only(target: T) -> T:
    """`target` for rank 0 alone: a function, a class or an object whose calls have effects and no results that count.

    Examples: `main_only(SummaryWriter)("runs/x")`, `main_only(os.mkdir)(path)`, `main_only(shutil.copyfile)(a, b)`,
    `wandb = main_only(wandb)`.

    What a class makes of a path and gives back what it holds (`h5py.File`), or a function opens by a mode, is there
    on every rank: on the others with a temporary file in that place, so that the script can read what it has written.

    Deferred batches among the arguments of its calls are gathered first, on every rank. Other ranks' reads wait until
    rank 0 has done the calls of a function or class. In `main_first()` it is for the first rank of each machine.

    Before `setup` it isn't known which rank this is: what a module has, or a class makes, is found at its first use.
    None, in the place of a module that isn't installed, stays.

    Returns:
        What every rank may call. On rank 0 that gives what `target` gives; elsewhere an `Absent`, which takes every
        call, attribute and `with`, and is true. Of a `logging.Handler` it makes a `logging.NullHandler`.
    """
    if not world.current().ready and inspect.ismodule(target):
        return cast("T", _Later(lambda: _now(target)))
    if not world.current().ready and inspect.isclass(target):
        return cast("T", lambda *args, **kwargs: _Later(functools.cache(lambda: _now(target)(*args, **kwargs))))
    if target is None or world.world_size() == 1:
        return target
    present = target if file_sync.writes() or _is_read_back(target) else _stand_in(target)
    return cast("T", _Called(present) if callable(target) or inspect.ismodule(target) else _gathering(present))


def _stand_in(target: Any) -> Any:
    if inspect.isclass(target) and issubclass(target, logging.Handler):
        return lambda *args, **kwargs: logging.NullHandler()
    return Absent(getattr(target, "__name__", type(target).__name__))


def _now(target: Any) -> Any:
    return main_only(target) if world.current().ready else target


class _Later:
    """What `main_only` makes before `setup`, in front of what it would be now."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._find(), attribute)


for _method in ("__enter__", "__exit__", "__getitem__", "__setitem__", "__call__"):
    setattr(_Later, _method, lambda self, *args, _name=_method, **given: getattr(self._find(), _name)(*args, **given))


class _Called:
    """What `main_only` makes of a function, a class or a module, or of its stand-in."""

    def __init__(self, target: Any, counts: bool = True) -> None:
        self._target = target
        self._counts = counts

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = materialize((args, kwargs))
        if _is_read_back(self._target):
            made = _twin(self._target, args, kwargs)
            is_absent = made is None and not file_sync.writes()
            return _stand_in(self._target)(*args, **kwargs) if is_absent else _gathering(made, closes=True)
        if not self._counts or not callable(self._target) or file_sync.shared() is None:
            return _gathering(self._target(*args, **kwargs))
        made = hands.by_main("ddp.main_only", lambda: self._target(*args, **kwargs))
        return _gathering(made if world.is_main() else self._target(*args, **kwargs))

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._target, attribute)
        # Whether rank 0's can be called isn't known elsewhere: so these calls aren't counted anywhere.
        return _Called(found, counts=False) if callable(found) and not isinstance(found, Absent) else found


def _gathering(made: Any, closes: bool = False) -> Any:
    """The same object, whose public methods now gather deferred batches first: its class is derived from its own.

    With `closes`, other ranks wait for the end of rank 0's `close`.
    """
    kind: Any = type(made)
    if kind.__module__ == "builtins" or isinstance(made, (Absent, logging.Handler, io.IOBase)):
        return made

    def getattribute(self: Any, name: str) -> Any:
        found = kind.__getattribute__(self, name)
        if closes and name == "close":
            return functools.partial(_close, found)
        is_method = inspect.isroutine(found) and not name.startswith("_")
        return functools.partial(_call, found) if is_method else found

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__getattribute__": getattribute}
    if hasattr(kind, "__setitem__"):
        names["__setitem__"] = lambda self, key, value: _call(kind.__setitem__, self, key, value)
    with suppress(TypeError):  # its layout is fixed in C: what is written in C looks by itself, or not at all
        made.__class__ = type(kind.__name__, (kind,), names)
    return made


# Objects that are filled and read back (`h5py.File`): rank 0's at its path, another rank's at one of its own. What
# writes from C++ passes no door, so only rank 0 may have the script's path. And what was written is read back on every
# rank, by whatever functions the object has: so every rank has one.

_kept: list[tempfile.TemporaryDirectory[str]] = []


def _is_read_back(target: Any) -> bool:
    """Whether what it makes gives back what it holds, as dictionaries do, or is a function that opens by a mode."""
    if inspect.isclass(target):
        return hasattr(target, "__getitem__")
    mode = inspect.signature(target).parameters.get("mode") if inspect.isfunction(target) else None
    return mode is not None and isinstance(mode.default, str)  # not that of `os.makedirs`


def _twin(kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`kind(*args, **kwargs)`; on ranks that write no files with a path of their own in place of the first argument.

    What is appended to, or has a mode that isn't known, starts there as a copy. What is only read is the script's
    own. None on ranks other than 0 where that hasn't made or opened a file at its first argument. What `kind`
    raises on rank 0, it raises on every rank.
    """
    given = _bound(kind, args, kwargs)
    nothing: tuple[str, Any] = ("", None)
    name, path = next(iter(given.items()), nothing)
    if isinstance(path, io.IOBase):
        return kind(*args, **kwargs)
    is_path, mode = isinstance(path, (str, os.PathLike)), set(str(given.get("mode", "+")))
    if not mode & set("wx"):
        hands.by_main("ddp.main_only", lambda: None)  # which comes after all that rank 0 has written before
        if not mode & set("a+"):
            return kind(*args, **kwargs)
    if file_sync.writes() or not is_path:
        there = os.path.exists if is_path else lambda path: False
        made = hands.by_main("ddp.main_only", lambda: kind(*args, **kwargs), path, lambda made: there(path))
        return made if file_sync.writes() else None
    folder = tempfile.TemporaryDirectory(prefix="dp2ddp")
    own = os.path.join(folder.name, os.path.basename(path))
    if not mode & set("wx"):
        with file_sync.not_together("own"), suppress(FileNotFoundError):
            (shutil.copytree if os.path.isdir(path) else shutil.copyfile)(path, own)
    if not hands.by_main("ddp.main_only", lambda: None, path):
        return None
    made = kind(*([own, *args[1:]] if args else []), **(kwargs if args else {**kwargs, name: own}))
    try:
        weakref.finalize(made, folder.cleanup)
    except TypeError:  # it can't be referred to so: the folder goes with the process
        _kept.append(folder)
    return made


def _close(real: Any) -> None:
    """An object's `close`: other ranks go on when rank 0 has done it, as they may read the file by its path then."""
    if not file_sync.writes():
        real()
    hands.by_main("ddp.main_only", real)


def _bound(kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by their names, the first one first."""
    with suppress(ValueError, TypeError):  # of a class in C they aren't known, nor with arguments that it doesn't take
        bound = inspect.signature(kind).bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments
    return {**{str(place): value for place, value in enumerate(args)}, **kwargs}


def _call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    args, kwargs = materialize((args, kwargs))
    return function(*args, **kwargs)


def _close_figures(tag: Any, figure: Any, *args: Any, close: bool = True, **kwargs: Any) -> None:
    """`SummaryWriter.add_figure` closes what it has drawn; figures that stay open fill the memory of other ranks.

    https://docs.pytorch.org/docs/stable/tensorboard.html#torch.utils.tensorboard.writer.SummaryWriter.add_figure
    """
    if (args[1] if len(args) > 1 else close) and "matplotlib.pyplot" in sys.modules:
        for each in figure if isinstance(figure, list) else [figure]:
            sys.modules["matplotlib.pyplot"].close(each)


def hide_windows() -> None:
    """From now on matplotlib draws here as ever, and opens no window."""
    os.environ["MPLBACKEND"] = "agg"  # for who imports it later
    matplotlib: Any = sys.modules.get("matplotlib")
    if matplotlib is not None:
        matplotlib.use("agg")
        matplotlib.use = lambda *args, **kwargs: None
        importlib.import_module("matplotlib.backend_bases").FigureManagerBase.window = Absent("window")


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
        materialize((args, kwargs))
        if self._absent_name.endswith(".add_figure"):
            _close_figures(*args, **kwargs)
        return Absent(f"{self._absent_name}(...)")

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        child = Absent(f"{self._absent_name}.{attribute}")
        setattr(self, attribute, child)
        return child

    def __getitem__(self, key: Any) -> Any:
        return self._absent_items[key] if key in self else Absent(f"{self._absent_name}[{key!r}]")

    def __setitem__(self, key: Any, value: Any) -> None:
        value = materialize(value)
        with suppress(TypeError):  # an array, a slice
            self._absent_items[key] = value

    def __delitem__(self, key: Any) -> None:
        if key in self:
            del self._absent_items[key]

    def __contains__(self, key: Any) -> bool:
        with suppress(TypeError):
            return key in self._absent_items
        return False

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
def own_files() -> Iterator[None]:
    """`with own_files(): ...`: each rank writes for itself, under names of its own (a profile, for instance)."""
    with file_sync.not_together("own"):
        yield


@contextmanager
def main_first() -> Iterator[None]:
    """`with main_first(): ...`: local rank 0 of each machine runs the body first, the others after it (downloads).
    `@main_first()` above a function does the same for each of its calls.

    Rank 0 begins, and the first ranks of other machines follow, so that machines which share a disk fetch once.
    For "if it is missing, fetch it" as a whole: the others then find that nothing is missing, and take over the working
    directory if the body has changed it. What is written in the body by `open`, `save` and `main_only` is written by
    local rank 0 of each machine.

    Raises:
        BaseException: on the other ranks, what the body raised on local rank 0, as the nearest of Python's own
            exceptions; they don't run it then.
    """
    store = file_sync.shared()
    if store is None:  # also inside of another one
        yield
        return
    turn, is_first, (told, moved) = file_sync.next_turn("first"), world.local_rank() == 0, (None, None)
    machine = world.rank() - world.local_rank()
    if not world.is_main():  # the first of another machine waits as well: it may look at the very same disk
        told, moved = file_sync.hear(store, f"{turn}/{0 if is_first else machine}", "local rank 0 in main_first()")
    begun = os.getcwd()
    try:
        if told is not None:
            raise codec.error_again(*told) from file_sync.PeerError("it failed in main_first() on local rank 0")
        with file_sync.not_together("local"):
            yield
        if moved is not None:
            os.chdir(moved)
    except BaseException as error:
        told = codec.told_error(error)
        raise
    finally:
        if is_first:
            now = os.getcwd()
            file_sync.tell(store, f"{turn}/{machine}", [told, now if now != begun else None])
