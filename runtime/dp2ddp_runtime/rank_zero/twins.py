"""Objects that are filled and read back (`h5py.File`): rank 0's at its path, another rank's at one of its own.

What writes from C++ passes no door, so only rank 0 may have the script's path. And what was written is read back on
every rank, by whatever functions the object has: so every rank has one.
"""

from __future__ import annotations

import inspect
import io
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..ranks import file_sync
from . import hands

_WHAT = "ddp.main_only"
_kept: list[tempfile.TemporaryDirectory[str]] = []


def is_read_back(target: Any) -> bool:
    """Whether this is a class whose objects give back what they hold, as dictionaries do. Writers of reports don't."""
    return inspect.isclass(target) and hasattr(target, "__getitem__")


def make(kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
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
        hands.by_main(_WHAT, lambda: None)  # which comes after all that rank 0 has written before
        if not mode & set("a+"):
            return kind(*args, **kwargs)
    if file_sync.writes() or not is_path:
        there = os.path.exists if is_path else lambda path: False
        made = hands.by_main(_WHAT, lambda: kind(*args, **kwargs), path, lambda made: there(path))
        return made if file_sync.writes() else None
    folder = tempfile.TemporaryDirectory(prefix="dp2ddp")
    own = os.path.join(folder.name, os.path.basename(path))
    if not mode & set("wx"):
        with file_sync.not_together("own"), suppress(FileNotFoundError):
            (shutil.copytree if os.path.isdir(path) else shutil.copyfile)(path, own)
    if not hands.by_main(_WHAT, lambda: None, path):
        return None
    made = kind(*([own, *args[1:]] if args else []), **(kwargs if args else {**kwargs, name: own}))
    try:
        weakref.finalize(made, folder.cleanup)
    except TypeError:  # it can't be referred to so: the folder goes with the process
        _kept.append(folder)
    return made


def close(real: Any) -> None:
    """An object's `close`: other ranks go on when rank 0 has done it, as they may read the file by its path then."""
    if not file_sync.writes():
        real()
    hands.by_main(_WHAT, real)


def _bound(kind: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by their names, the first one first."""
    with suppress(ValueError, TypeError):  # of a class in C they aren't known, nor with arguments that it doesn't take
        bound = inspect.signature(kind).bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments
    return {**{str(place): value for place, value in enumerate(args)}, **kwargs}
