"""Collectives on tensors, on whichever device this process group's backends can send them from.

Those of every step are called on the process group itself: `torch.distributed`'s functions check and log each call,
which between two layers takes longer than sending some kilobytes does.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from . import world
from .payload import bytes_of, plain


def carrier(device: torch.device) -> torch.device:
    """The device on which tensors of `device` can travel with this process group's backends."""
    config = str(dist.get_backend_config())
    if device.type == "cuda":
        return device if "cuda:nccl" in config else torch.device("cpu")
    return device if "cpu:" in config else world.device()


@functools.lru_cache(maxsize=1)
def group_beside() -> Any:
    """A gloo group for what travels while other collectives run. The first call is a collective."""
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=world.current().timeout))


def start_sum(tensor: torch.Tensor, group: Any = None) -> Any:
    """Start adding up a tensor over the ranks, in place, as `dist.all_reduce(async_op=True)`. Returns the `Work`."""
    return _process_group(group).allreduce([tensor])


def start_all_gather(rows: list[torch.Tensor], row: torch.Tensor, group: Any = None) -> Any:
    """Start gathering every rank's `row` into `rows`, as `dist.all_gather(async_op=True)`. Returns the `Work`."""
    return _process_group(group).allgather([rows], [row])


def _process_group(group: Any) -> Any:
    return dist.group.WORLD if group is None else group


def new_rows(row: torch.Tensor) -> list[torch.Tensor]:
    """Room for each rank's CPU row, in one buffer."""
    return list(torch.empty((world.world_size(), len(row)), dtype=row.dtype).unbind(0))


@torch.inference_mode(False)
@torch.no_grad()
def all_gather_rows(row: torch.Tensor) -> list[torch.Tensor]:
    """All-gather equally sized 1-D tensors: each rank's, in rank order."""
    route = carrier(row.device)
    sent = row.to(route)
    if route.type == "cpu":
        rows = new_rows(sent)
        start_all_gather(rows, sent).wait()
        return [gathered.to(row.device) for gathered in rows]
    out = torch.empty((world.world_size(), len(row)), dtype=row.dtype, device=route)
    dist.all_gather_into_tensor(out, sent)
    return list(out.to(row.device).unbind(0))


@torch.inference_mode(False)
@torch.no_grad()
def broadcast_coalesced(tensors: Sequence[torch.Tensor], source: int = 0) -> None:
    """Overwrite `tensors` with rank `source`'s, one broadcast per dtype and device, without bumping their versions."""
    groups: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for tensor in (tensor for tensor in tensors if tensor.numel()):
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor.data)
    for (_, device), members in groups.items():
        route = carrier(device)
        if len(members) == 1 and members[0].is_contiguous() and members[0].device == route:
            dist.broadcast(bytes_of(members[0]), src=source)
            continue
        flat = torch.cat([plain(member).reshape(-1) for member in members]).to(route)
        dist.broadcast(bytes_of(flat), src=source)  # bytes: every backend knows these
        if world.rank() != source:
            pieces = torch.split(flat.to(device), [member.numel() for member in members])
            for member, piece in zip(members, pieces):
                member.copy_(piece.view(member.shape))
