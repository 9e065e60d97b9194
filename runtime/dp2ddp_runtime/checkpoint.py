"""Checkpoints: written once and whole, and read when they are there."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from typing import IO, Any, Callable, Union

import torch
from torch import nn

from .acting import acting
from .disk import changing
from .model import wrap_model
from .nesting import nested
from .rows import materialize
from .whose import mode_of, ours
from .world import world

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
    obj = materialize(obj)
    if not isinstance(f, (str, os.PathLike)):
        _save(obj, f, *args, **kwargs)
        return
    path = ours(f)
    if path is None or mode_of():
        if mode_of() != "mute":
            write(obj, f, *args, **kwargs)
        return
    is_lost = world.rank and not os.path.isdir(os.path.dirname(path))
    with changing({path: "file"}):
        if not world.rank:
            write(obj, f, *args, **kwargs)
        elif is_lost:
            raise RuntimeError(f"Parent directory {os.path.dirname(os.path.realpath(f))} does not exist.")


def _save_whole(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
    path, name = os.path.realpath(f), os.path.basename(f)
    folder = os.path.dirname(path)
    is_file = os.path.isfile(path) and os.access(path, os.W_OK)
    if not os.access(folder, os.W_OK | os.X_OK) or (os.path.exists(path) and not is_file):
        _save(obj, path, *args, **kwargs)  # into a device, or an error
        return
    with acting("own" if world.rank else ""):  # other ranks, which list the folder, are told that it isn't there
        beside = tempfile.mkdtemp(prefix=f".{name[:60]}.", suffix=".tmp", dir=folder)
    try:
        new = os.path.join(beside, name)  # torch writes the file's name into the file
        _save(obj, new, *args, **kwargs)
        if is_file:
            shutil.copymode(path, new)
        with open(new, "rb") as file:
            os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def load(f: File, *args: Any, **kwargs: Any) -> Any:
    """`torch.load`; a whole `nn.DataParallel` that was pickled comes back wrapped, also one in dicts and lists.

    A read waits for the writes of that file that this rank has passed. No collective.

    See https://pytorch.org/docs/stable/generated/torch.load.html.
    """
    return loading(torch.load)(f, *args, **kwargs)


def loading(real: Callable[..., Any]) -> Callable[..., Any]:
    """What stands in the place of `torch.load`."""

    @functools.wraps(real)
    def function(f: File, *args: Any, **kwargs: Any) -> Any:
        return nested(_wrapped, real(f, *args, **kwargs), nn.DataParallel)

    return function


def _wrapped(value: Any) -> Any:
    return wrap_model(value.module, dim=getattr(value, "dim", 0))  # without CUDA it has none
