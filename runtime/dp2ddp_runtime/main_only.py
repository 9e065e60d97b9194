"""What rank 0 does alone: writers and services.

The other ranks get stand-ins that take every call, because every rank runs every line. No collectives.
"""

from __future__ import annotations

import functools
import inspect
import io
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch.utils.data import get_worker_info

from . import place
from .acting import acting, mode
from .birth import birth
from .disk import EVERYTHING, changing, disk
from .rows import materialize
from .store import count, publish, receive
from .whose import mode_of, ours, turn
from .world import world

T = TypeVar("T")


def main_only(target: T) -> T:
    """`target` for rank 0 alone: a function, class, module or object whose calls have effects but no results.

    Examples: `main_only(SummaryWriter)("runs/x")`, `main_only(cv2.imwrite)(path, image)`, `wandb = main_only(wandb)`.

    Deferred batches among the arguments of its calls are gathered first, on every rank. Other ranks' reads wait until
    rank 0 has done the calls of a function or class. What opens a file for reading (`h5py.File(path, "r")`) is there on
    every rank, by "r+" for reading alone. None, in the place of a module that isn't installed, stays. No collective.

    Returns:
        What every rank may call. On rank 0 that gives what `target` gives; elsewhere an `Absent`, which takes every
        call, attribute and `with`, and is true. Of a `logging.Handler` it makes a `logging.NullHandler`.
    """
    if callable(target) or inspect.ismodule(target):
        return cast("T", _Called(target))
    return cast("T", _gathering(_on_this_rank(target)) if target is not None and disk.is_used else target)


def _is_other() -> bool:
    """Whether this is another rank than 0. Above `setup` that isn't known, which `setup` will tell."""
    if not (birth.called or birth.asked_at):
        birth.asked_at = place.line()
    return world.rank > 0


def _on_this_rank(target: Any) -> Any:
    if not _is_other():
        return target
    if inspect.isclass(target) and issubclass(target, logging.Handler):
        return lambda *args, **kwargs: logging.NullHandler()
    return Absent(getattr(target, "__name__", type(target).__name__))


class _Called:
    """What `main_only` makes of a function, a class or a module. Whose rank this is counts when it is called: modules
    that are imported above `setup` don't know.

    Args:
        target: what it was given.
        counts: whether other ranks' reads wait for its calls.
    """

    def __init__(self, target: Any, counts: bool = True) -> None:
        self._target, self._counts = target, counts

    @property
    def _present(self) -> Any:
        if not _is_other():
            return self._target
        return self.__dict__.setdefault("_absent", _on_this_rank(self._target))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._counts and (mode.get() == "sample" or get_worker_info() is not None):
            return self._target(*args, **kwargs)  # each rank loads its own samples: nobody else writes for them
        if not disk.is_used:
            return self._present(*args, **kwargs)
        args, kwargs = materialize((args, kwargs))
        paths, bound = _paths(args, kwargs), _reads(self._target, args, kwargs)
        if bound is not None and "+" not in bound.arguments["mode"]:
            for path in paths if not mode_of() else ():
                disk.looks(path)  # where rank 0 has closed what it has written
                disk.look(path) if world.rank else None
            return self._target(*args, **kwargs)
        if not self._counts or not callable(self._target) or mode_of():
            return _gathering(self._present(*args, **kwargs))
        with changing(dict.fromkeys(paths, "tree")):
            made = self._present(*args, **kwargs)
        for path in paths if inspect.isclass(self._target) else ():
            disk.opens(path, raw=True)  # when it is closed isn't seen
        disk.changed(EVERYTHING)
        if world.rank:  # what C++ writes, C++ reads: nothing of Python sees that
            disk.wait_for_changes(EVERYTHING)
        if world.rank and bound is not None:
            bound.arguments["mode"] = "r"
            with suppress(OSError):  # rank 0 has it open
                return self._target(*bound.args, **bound.kwargs)
        return _gathering(made)

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(self._present, attribute)
        # Whether rank 0's can be called isn't known elsewhere: so these calls aren't counted anywhere.
        return _Called(found, counts=False) if callable(found) and not isinstance(found, Absent) else found


def _paths(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """What may be a path, among the arguments of a call."""
    given = (each for each in (*args, *kwargs.values()) if isinstance(each, (str, os.PathLike)))
    return [path for path in (ours(each) for each in given if "\n" not in str(each)) if path is not None]


def _reads(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments | None:
    """The arguments of a call that opens something for reading, by its argument `mode`, maybe to write it, too."""
    with suppress(ValueError, TypeError):  # of a class in C the arguments aren't known; a module has none
        bound = inspect.signature(target).bind(*args, **kwargs)
        bound.apply_defaults()
        mode = bound.arguments.get("mode")
        return bound if isinstance(mode, str) and "r" in mode and not set(mode) & set("wax") else None
    return None


def _gathering(made: Any) -> Any:
    """The same object, whose public methods now gather deferred batches first: its class is derived from its own."""
    kind: Any = type(made)
    if kind.__module__ == "builtins" or isinstance(made, (Absent, logging.Handler, io.IOBase)):
        return made

    def getattribute(self: Any, name: str) -> Any:
        found = kind.__getattribute__(self, name)
        is_method = inspect.isroutine(found) and not name.startswith("_")
        return functools.partial(_call, found) if is_method else found

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__getattribute__": getattribute}
    if hasattr(kind, "__setitem__"):
        names["__setitem__"] = lambda self, key, value: _call(kind.__setitem__, self, key, value)
    with suppress(TypeError):  # its layout is fixed in C: what is written in C looks by itself, or not at all
        made.__class__ = type(kind.__name__, (kind,), names)
    return made


def _call(function: Any, /, *args: Any, **kwargs: Any) -> Any:
    args, kwargs = materialize((args, kwargs))
    return function(*args, **kwargs)


class Absent:
    """What other ranks hold in place of an object that only rank 0 has.

    It can be called, entered, indexed, iterated (nothing comes) and asked for any attribute; what is set as one is
    kept. It is true, as the object on rank 0 is, so that `if writer:` goes the same way. It is no number and no array:
    who takes it as one gets a `TypeError`, because a result that only rank 0 has must not reach the training.
    """

    def __init__(self, name: str) -> None:
        self._absent_name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Absent:
        materialize((args, kwargs))
        return Absent(f"{self._absent_name}(...)")

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        child = Absent(f"{self._absent_name}.{attribute}")
        setattr(self, attribute, child)
        return child

    def __getitem__(self, key: Any) -> Any:
        return Absent(f"{self._absent_name}[{key!r}]")

    def __setitem__(self, key: Any, value: Any) -> None:
        materialize(value)

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Absent:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def _no_value(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError(
            f"{self._absent_name} is on rank 0 alone (ddp.main_only), and its value is taken at {place.line()}. "
            "Read it from a file that is closed, or keep it beside what is written"
        )

    __array__ = __float__ = __int__ = __index__ = _no_value

    def __repr__(self) -> str:
        return f"<{self._absent_name}: on rank 0 alone>"


@contextmanager
def own_files() -> Iterator[None]:
    """`with own_files(): ...`: each rank writes for itself, under names of its own (a profile, for instance)."""
    with acting("own"):
        yield


def broadcast(value: T) -> T:
    """Rank 0's value, on every rank: what it had at this line, this many times on. No collective: rank 0 never waits.

    For what may differ between ranks and decides what the script does next: the time, whether a service answers.

    Args:
        value: None, numbers, text, bytes, dates and times, paths, tensors, arrays; tuples, lists, sets, dicts of these.

    Raises:
        TypeError: it is something else.
        PeerError: rank 0 has ended without coming here.
    """
    _is_other()
    if os.getpid() != world.pid or not disk.is_used:
        return value
    value, key = materialize(value), turn("value")
    if not world.rank:
        publish(key, value)
        return value
    found = receive(key, f"rank 0's value ({key})")
    if world.size > 1 and count(f"{key}/read", 1) == world.size - 1:  # nobody needs it any more
        world.store.delete_key(key)
        world.store.delete_key(f"{key}/read")
    if isinstance(found, torch.Tensor) and isinstance(value, torch.Tensor):
        return cast("T", found.to(value.device))
    return cast("T", found)
