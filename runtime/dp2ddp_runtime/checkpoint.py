"""Checkpoints: written once and whole, read when they are there, with or without `module.` in their keys."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import IO, Any, Callable, Union

import torch
from torch import nn

from . import journal, world
from .deferred import settle

File = Union[str, "os.PathLike[str]", IO[bytes]]

_PREFIX = "module."


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
    if not isinstance(f, (str, os.PathLike)):
        if world.is_main() or isinstance(f, io.BytesIO):
            torch.save(obj, f, *args, **kwargs)
        return
    try:
        if world.is_main():
            _save_whole(obj, os.path.realpath(f), os.path.basename(os.fspath(f)), args, kwargs)
    finally:
        journal.wrote(f)


def load(f: File, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`torch.load`, once rank 0 has written what this rank has passed.

    Args:
        f, *args, **kwargs: as `torch.load` takes them.
        map_location: as there. None: what was saved from CUDA comes to this rank's device, the rest to the CPU.

    Returns:
        What was saved. A whole `nn.DataParallel` that was pickled comes back wrapped for the ranks
        (`wrap_model(..., gather=True)`), also as a value of a dictionary.

    Raises:
        RuntimeError, OSError, ...: as `torch.load`.
        PeerError: rank 0 hasn't written the file in time.

    See https://pytorch.org/docs/stable/generated/torch.load.html.
    """
    if isinstance(f, (str, os.PathLike)):
        journal.before_read(f)
    if map_location is None and torch.cuda.is_available():
        map_location = _to_own_device
    obj = torch.load(f, map_location, *args, **kwargs)
    if isinstance(obj, dict):
        for key, value in obj.items():
            obj[key] = _wrapped_for_ranks(value)
    return _wrapped_for_ranks(obj)


def load_state_dict(model: Any, state: Mapping[str, Any], strict: bool = True, **kwargs: Any) -> Any:
    """`model.load_state_dict(state)`, whether or not the keys of either begin with `module.`.

    Args:
        model: wrapped or plain; or an optimizer, a scheduler, ..., which gets `state` as it is.
        state: the parameters by name; all with the prefix or all without.
        strict, **kwargs: as `nn.Module.load_state_dict` takes them.

    Returns:
        What the model's own `load_state_dict` returns (`missing_keys`, `unexpected_keys`).

    Raises:
        RuntimeError: as there, if `state` doesn't fit in either form.

    See https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict.
    """
    if not isinstance(model, nn.Module):
        return model.load_state_dict(state, **kwargs)
    return model.load_state_dict(fit_prefix(state, model.state_dict().keys()), strict=strict, **kwargs)


def fit_prefix(state: Mapping[str, Any], expected: Iterable[str]) -> Mapping[str, Any]:
    """`state` with its keys as a model expects them: as they are, without `module.` or with it.

    Args:
        state: parameters by name. It stays as it is.
        expected: the model's own keys.

    Returns:
        `state` itself where that fits as well as any, else a copy, with torch's `_metadata` (versions by module)
        renamed alike.
    """
    wanted = set(expected)
    forms: list[Callable[[str], str]] = [_as_is, _add_prefix]
    if all(key.startswith(_PREFIX) for key in state):
        forms.append(_drop_prefix)
    form = max(forms, key=lambda form: len(wanted.intersection(map(form, state))))
    return state if form is _as_is else _renamed(state, form)


def _as_is(key: str) -> str:
    return key


def _add_prefix(key: str) -> str:
    return _PREFIX + key


def _drop_prefix(key: str) -> str:
    return key[len(_PREFIX) :]


def _renamed(state: Mapping[str, Any], form: Callable[[str], str]) -> Mapping[str, Any]:
    renamed = OrderedDict((form(key), value) for key, value in state.items())
    versions = getattr(state, "_metadata", None)
    if versions is not None:
        # By module, "" being the model itself: a key's form with no parameter name after the dot.
        renamed._metadata = {form(f"{name}." if name else "").rstrip("."): v for name, v in versions.items()}  # type: ignore[attr-defined]
    return renamed


def _wrapped_for_ranks(value: Any) -> Any:
    if not isinstance(value, nn.DataParallel):
        return value
    from .model import wrap_model

    return wrap_model(value.module, gather=True, dim=getattr(value, "dim", 0))  # without CUDA it has none


def _to_own_device(storage: Any, location: str) -> Any:
    """A `map_location` (https://pytorch.org/docs/stable/generated/torch.load.html): None is torch's default."""
    if not location.startswith("cuda"):
        return None
    device = world.device()
    return storage if device.type == "cpu" else storage.cuda(device)


def _save_whole(obj: object, path: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not _can_be_replaced(path):
        torch.save(obj, path, *args, **kwargs)
        return
    # A folder of its own, because torch writes the file's name into the file.
    folder = tempfile.mkdtemp(prefix=f".{name}.", suffix=".tmp", dir=os.path.dirname(path))
    try:
        new = os.path.join(folder, name)
        torch.save(obj, new, *args, **kwargs)
        if os.path.exists(path):
            os.chmod(new, stat.S_IMODE(os.stat(path).st_mode))
        _to_disk(new)
        os.replace(new, path)
        _to_disk(os.path.dirname(path))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _can_be_replaced(path: str) -> bool:
    """Whether `path` is, or can become, a plain file of ours. If not, writing in place does what it always did."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        return False
    return not os.path.exists(path) or (os.path.isfile(path) and os.access(path, os.W_OK))


def _to_disk(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
