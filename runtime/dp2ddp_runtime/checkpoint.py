"""Checkpoints: written once and whole, and read when they are there."""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO, Any, Callable, Union

import torch
from torch import nn

from .acting import acting
from .disk import disk
from .whose import mode_of, ours
from .world import world

fcntl: Any = None
with contextlib.suppress(ImportError):  # Windows
    import fcntl

_FULL = 1 << 16  # bytes that are left
_save = torch.save

File = Union[str, "os.PathLike[str]", IO[bytes]]


def save(obj: object, f: File, *args: Any, **kwargs: Any) -> None:
    """`torch.save`, by rank 0 alone; a file at a path is whole at any moment. No collective.

    The new file is written beside the old one and takes its place when it is complete and on the disk. A symbolic link
    stays, and its target is replaced; an existing file keeps its mode.

    Args:
        obj, f, *args, **kwargs: as `torch.save` takes them. Every rank writes to its own `io.BytesIO`; any other file
            object is rank 0's.

    Raises:
        RuntimeError, OSError: as `torch.save`.

    See https://pytorch.org/docs/stable/generated/torch.save.html.
    """
    _by_main(_save_whole, obj, f, *args, **kwargs)


def saving(real: Callable[..., Any]) -> Callable[..., Any]:
    """What stands in the place of `torch.save`."""

    @functools.wraps(real)
    def function(obj: object, f: File, *args: Any, **kwargs: Any) -> None:
        _by_main(real, obj, f, *args, **kwargs)

    return function


def _by_main(write: Callable[..., Any], obj: object, f: File, *args: Any, **kwargs: Any) -> None:
    from .rows import materialize

    obj = materialize(obj)
    if not isinstance(f, (str, os.PathLike)):
        _save(obj, f, *args, **kwargs)
        return
    path = ours(f)
    if path is None or mode_of():
        if mode_of() != "mute":
            write(obj, f, *args, **kwargs)
        return
    disk.meets(path)
    if world.rank:
        if not os.path.isdir(os.path.dirname(path)):
            folder = os.path.dirname(os.path.realpath(f) if write is _save_whole else os.fspath(f))
            raise RuntimeError(f"Parent directory {folder} does not exist.")
    else:
        with acting("own"):
            write(obj, f, *args, **kwargs)
    disk.ends(path, "file")


def _save_whole(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
    path, name = os.path.realpath(f), os.path.basename(f)
    folder = os.path.dirname(path)
    is_ours = os.path.isfile(path) and os.access(path, os.W_OK)
    if not os.access(folder, os.W_OK | os.X_OK) or (os.path.exists(path) and not is_ours):
        _save(obj, path, *args, **kwargs)  # into a device, or an error
        return
    with _folder_beside(path, name) as beside:
        new = os.path.join(beside, name)
        try:
            _save(obj, new, *args, **kwargs)
        except (RuntimeError, OSError) as error:  # of a full disk torch says no more than that it couldn't write
            if shutil.disk_usage(folder).free > _FULL:
                raise
            what = "dp2ddp: ddp.save has no room: the new file is written beside the old one, which stays whole"
            raise OSError(errno.ENOSPC, what, path) from error
        if is_ours:
            shutil.copymode(path, new)
        with open(new, "rb") as file:
            os.fsync(file.fileno())
        os.replace(new, path)


@contextlib.contextmanager
def _folder_beside(path: str, name: str) -> Iterator[str]:
    """A folder of the file's own, because torch writes the file's name into the file; without it afterwards.

    What killed processes have left of such folders is removed: the system takes its locks away from whoever dies.
    """
    parent, prefix, suffix = os.path.dirname(path), f".{name[:60]}.", ".tmp"
    for left in glob.glob(os.path.join(glob.escape(parent), f"{glob.escape(prefix)}????????{suffix}")):
        with contextlib.suppress(OSError):
            os.close(_lock(left, wait=False))
            shutil.rmtree(left)
    folder, lock = "", -1
    while not os.path.exists(folder):  # another job may have taken it for one that was left
        with acting(""):  # other ranks, which list the folder, are told that it isn't there
            folder = tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=parent)
        with contextlib.suppress(OSError):  # some file systems have no locks
            lock = _lock(folder, wait=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def _lock(folder: str, wait: bool) -> int:
    """An open file, as long as which no other process gets the folder's lock. OSError if another one has it."""
    if fcntl is None:
        raise OSError(errno.ENOTSUP, "no locks")
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file


def load(f: File, *args: Any, **kwargs: Any) -> Any:
    """`torch.load`; a whole `nn.DataParallel` that was pickled comes back wrapped, also as a value of a dictionary.

    A read waits for the writes of that file that this rank has passed. No collective.

    See https://pytorch.org/docs/stable/generated/torch.load.html.
    """
    return loading(torch.load)(f, *args, **kwargs)


def loading(real: Callable[..., Any]) -> Callable[..., Any]:
    """What stands in the place of `torch.load`."""

    @functools.wraps(real)
    def function(f: File, *args: Any, **kwargs: Any) -> Any:
        obj = real(f, *args, **kwargs)
        if isinstance(obj, dict):
            for key, value in obj.items():
                obj[key] = _wrapped(value)
        return _wrapped(obj)

    return function


def _wrapped(value: Any) -> Any:
    if not isinstance(value, nn.DataParallel):
        return value
    from .model import wrap_model

    return wrap_model(value.module, dim=getattr(value, "dim", 0))  # without CUDA it has none
