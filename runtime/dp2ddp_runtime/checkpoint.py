"""Checkpoints: written once and whole, and read when they are there."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from typing import IO, Any, Union

import torch
from torch import nn

from . import file_sync, world
from .deferred import settle
from .model import wrap_model

File = Union[str, "os.PathLike[str]", IO[bytes]]


def save(obj: object, f: File, *args: Any, **kwargs: Any) -> None:
    """`torch.save`, by rank 0 alone; a file at a path is whole at any moment.

    The new file is written beside the old one and takes its place when it is complete and on the disk. A symbolic link
    stays, and its target is replaced; an existing file keeps its mode.

    Args:
        obj, f, *args, **kwargs: as `torch.save` takes them. Every rank writes to its own `io.BytesIO`; any other file
            object is rank 0's.

    Raises:
        RuntimeError, OSError: as `torch.save`, on rank 0 alone.

    See https://pytorch.org/docs/stable/generated/torch.save.html.
    """
    obj = settle(obj)
    if isinstance(f, io.BytesIO):
        torch.save(obj, f, *args, **kwargs)
        return
    with file_sync.writing():
        if file_sync.writes() and isinstance(f, (str, os.PathLike)):
            _save_whole(obj, f, *args, **kwargs)
        elif file_sync.writes():
            torch.save(obj, f, *args, **kwargs)


def _save_whole(obj: object, f: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
    path, name = os.path.realpath(f), os.path.basename(f)
    folder = os.path.dirname(path)
    is_ours = os.path.isfile(path) and os.access(path, os.W_OK)
    if not os.access(folder, os.W_OK | os.X_OK) or (os.path.exists(path) and not is_ours):
        torch.save(obj, path, *args, **kwargs)  # into a device, or an error
        return
    # A folder of its own, because torch writes the file's name into the file.
    with tempfile.TemporaryDirectory(prefix=f".{name}.", suffix=".tmp", dir=folder) as beside:
        new = os.path.join(beside, name)
        torch.save(obj, new, *args, **kwargs)
        if is_ours:
            shutil.copymode(path, new)
        with open(new, "rb") as file:
            os.fsync(file.fileno())
        os.replace(new, path)


def load(f: File, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`torch.load`, once rank 0 has written what this rank has passed.

    Args:
        f, *args, **kwargs: as `torch.load` takes them.
        map_location: as there. None: what was saved from CUDA comes to this rank's device, the rest to the CPU.

    Returns:
        What was saved. A whole `nn.DataParallel` that was pickled comes back wrapped for the ranks
        (`wrap_model`), also as a value of a dictionary.

    Raises:
        RuntimeError, OSError, ...: as `torch.load`.
        PeerError: rank 0 hasn't written the file in time.

    See https://pytorch.org/docs/stable/generated/torch.load.html.
    """
    if isinstance(f, (str, os.PathLike)):
        file_sync.before_read(f)
    if map_location is None and torch.cuda.is_available():
        map_location = _to_own_device
    obj = torch.load(f, map_location, *args, **kwargs)
    if isinstance(obj, dict):
        for key, value in obj.items():
            obj[key] = _wrapped(value)
    return _wrapped(obj)


def _to_own_device(storage: Any, location: str) -> Any:
    """A `map_location`: None is torch's default."""
    if not location.startswith("cuda"):
        return None
    device = world.device()
    return storage if device.type == "cpu" else storage.cuda(device)


def _wrapped(value: Any) -> Any:
    if not isinstance(value, nn.DataParallel):
        return value
    return wrap_model(value.module, dim=getattr(value, "dim", 0))  # without CUDA it has none
