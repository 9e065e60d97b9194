"""The process groups, which nobody but the runtime sees.

A library that finds one adds up over ranks what the script has computed from whole batches, a second time. The script
that is converted has none.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from ..base import waiting, world

# https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
_VARIABLES = {
    "RANK",
    "WORLD_SIZE",
    *(f"{whose}_{what}" for whose in ("LOCAL", "GROUP", "ROLE") for what in ("RANK", "WORLD_SIZE", "NAME")),
}
_hidden: Any = None
_backend = ""  # by which it was joined
_config = ""  # of the hidden one: its backends, as `cpu:gloo,cuda:nccl`
_users = 0  # who has the group shown to them
_lock = threading.Lock()
_gradients: dict[Any, Any] = {}  # by the process group of all else


def join(backend: str, place: world.World) -> None:
    """Join the process group, of torch's `backend`, and hide it. A collective."""
    global _backend
    _backend = backend
    _join(place, place.store)


def join_anew(place: world.World) -> None:
    """The same for those of the ranks that go on, once all have left the group that they were in."""
    shows = sys.excepthook  # around which torch puts its own each time
    _join(place, dist.PrefixStore(f"of {place.world_size}", place.store))  # type: ignore[attr-defined,arg-type]
    sys.excepthook = shows


def _join(place: world.World, store: Any) -> None:
    limit: Any = waiting.NEVER
    dist.init_process_group(_backend, store=store, rank=place.rank, world_size=place.world_size, timeout=limit)
    for_gradients()
    hide()


def hide() -> None:
    """From now on `torch.distributed.is_initialized()` is False, as in the original."""
    global _hidden, _config
    _config, _hidden = backends(), whole()
    dist.GroupMember.WORLD = None


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """For what of torch asks for the group: there is one meanwhile."""
    global _users
    with _lock:
        _users += 1
        dist.GroupMember.WORLD = whole()
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _hidden is not None and not _users:
                dist.GroupMember.WORLD = None


def leave() -> None:
    """End the groups and their threads, if there are any."""
    global _hidden
    # Newer torch complains or aborts if the group is left as it is; torch 2.1 hangs now and then if it is destroyed.
    if whole() is not None and torch.__version__ >= "2.4":  # a TorchVersion, so by number
        dist.GroupMember.WORLD = whole()
        dist.destroy_process_group()
    dist.GroupMember.WORLD = _hidden = None


def hide_variables() -> None:
    """Take torchrun's variables out of the environment: whoever sees them, joins a group or takes a part of the work.

    What this rank starts finds them as `world.environment` does.
    """
    names = [name for name in os.environ if name in _VARIABLES or name.startswith(("TORCHELASTIC_", "MASTER_"))]
    if "RANK" in names:
        told = {**json.loads(os.environ.get(world.PLACE, "{}")), **{name: os.environ.pop(name) for name in names}}
        os.environ[world.PLACE] = json.dumps(told)


def whole() -> Any:
    """The process group of all ranks; None for a single process."""
    return _hidden if _hidden is not None else dist.group.WORLD


def backends() -> str:
    """By which backend tensors of each kind of device travel."""
    return _config if _hidden is not None else str(dist.get_backend_config())


def for_gradients() -> Any:
    """The process group for gradients. A collective at first.

    One of their own, for all models: a rank that has diverged must not take an all-reduce for something else.
    """
    if whole() not in _gradients:
        _gradients.clear()
        with shown():
            _gradients[whole()] = dist.new_group(backend=backends(), timeout=waiting.NEVER)
    return _gradients[whole()]
