"""Checkpoints: written once and whole, and read when they are there."""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO, Any, Union

import torch
from torch import nn

from ..base import world
from ..batches.deferred import materialize
from ..model.wrapped import wrap_model
from . import hands

fcntl: Any = None
with contextlib.suppress(ImportError):  # Windows
    import fcntl

_FULL = 1 << 16  # bytes that are left

File = Union[str, "os.PathLike[str]", IO[bytes]]


def save(obj: object, f: File, *args: Any, **kwargs: Any) -> None:
    """`torch.save`, by rank 0 alone; a file at a path is whole at any moment.

    The new file is written beside the old one and takes its place when it is complete and on the disk. A symbolic link
    stays, and its target is replaced; an existing file keeps its mode.

    Args:
        obj, f, *args, **kwargs: as `torch.save` takes them. Every rank writes to its own `io.BytesIO`; any other file
            object is rank 0's.

    Raises:
        RuntimeError, OSError: as `torch.save`, on every rank.

    See https://pytorch.org/docs/stable/generated/torch.save.html.
    """
    obj = materialize(obj)
    if isinstance(f, io.BytesIO):
        torch.save(obj, f, *args, **kwargs)
        return
    write: Any = _save_whole if isinstance(f, (str, os.PathLike)) else torch.save
    hands.by_main("ddp.save", lambda: write(obj, f, *args, **kwargs), f)


def _save_whole(obj: object, f: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
    path, name = os.path.realpath(f), os.path.basename(f)
    folder = os.path.dirname(path)
    is_ours = os.path.isfile(path) and os.access(path, os.W_OK)
    if not os.access(folder, os.W_OK | os.X_OK) or (os.path.exists(path) and not is_ours):
        torch.save(obj, path, *args, **kwargs)  # into a device, or an error
        return
    with _folder_beside(path, name) as beside:
        new = os.path.join(beside, name)
        try:
            torch.save(obj, new, *args, **kwargs)
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


def load(f: File, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`torch.load`, onto this rank's device. After `setup` `torch.load` itself does so, where there are several ranks.

    Arguments and errors are those of `torch.load`. With `map_location=None` what was saved from CUDA comes to this
    rank's device, the rest to the CPU. A whole `nn.DataParallel` that was pickled comes back wrapped for the ranks,
    also as a value of a dictionary.

    See https://pytorch.org/docs/stable/generated/torch.load.html.
    """
    return onto_own_device(torch.load)(f, map_location, *args, **kwargs)


def onto_own_device(real: Any) -> Any:
    """`torch.load` as `load` is. (What was saved from `cuda:1` has no such device on a rank, which sees one.)"""
    if hasattr(real, "of_dp2ddp"):
        return real

    @functools.wraps(real)
    def loaded(f: File, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if map_location is None and torch.cuda.is_available():
            map_location = _to_own_device
        return _with_wrapped(real(f, map_location, *args, **kwargs))

    loaded.of_dp2ddp = True  # type: ignore[attr-defined]
    return loaded


def _with_wrapped(obj: Any) -> Any:
    if isinstance(obj, dict):
        for key, value in obj.items():
            obj[key] = _wrapped(value)
    return _wrapped(obj)


def _to_own_device(storage: Any, location: str) -> Any:
    """A `map_location`: None is torch's default."""
    if not location.startswith("cuda"):
        return None
    device = world.device()
    return storage if device.type == "cpu" else storage.cuda(device.index)  # newer torch takes no device here


def _wrapped(value: Any) -> Any:
    if not isinstance(value, nn.DataParallel):
        return value
    return wrap_model(value.module, dim=getattr(value, "dim", 0))  # without CUDA it has none
