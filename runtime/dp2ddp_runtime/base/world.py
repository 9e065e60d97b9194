"""Where this process stands: its rank, the world size, its device. Everything else in the runtime asks here."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload
from weakref import WeakSet

import torch
import torch.distributed as dist

from .location import here

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store


#: Set for the ranks of a plain start: torchrun's variables, as JSON. The script must not see these: it may set up DDP
#: itself if it does.
PLACE = "DP2DDP_PLACE"
#: Set for a rank: its GPU, as `CUDA_VISIBLE_DEVICES` names it; and how many of its machine's the job may use.
GPU, GPUS = "DP2DDP_GPU", "DP2DDP_GPUS"


@dataclass
class World:
    """A process's place among the ranks, as torchrun counts them (`RANK`, `LOCAL_RANK`, `WORLD_SIZE`, ...)."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    ready: bool = False
    #: The script's line that called `setup`; empty in a rank's child.
    set_up_at: str = ""
    #: Whether `setup` was given no devices, so that a wrap says how many ranks go on.
    takes_all: bool = False
    #: The script's line at which ranks ended that it had no use for; empty if none did.
    fewer_at: str = ""
    #: The first collective before `setup`, and its line.
    met_early: str = ""
    #: The process group's key-value store, for what must not be a collective; None for a single process.
    store: Store | None = None
    #: How long a rank waits for another one, in seconds.
    timeout: float = 1800.0
    #: The process that joined; a forked child (a DataLoader worker) has another one, and must leave the store alone.
    pid: int = field(default_factory=os.getpid)
    #: Whether a model was wrapped; else every rank does all of the work.
    wraps: bool = False
    #: The models that are wrapped.
    models: WeakSet[Any] = field(default_factory=WeakSet)
    told_of_repeated_work: bool = False
    #: The script's line that asked for the number of devices last.
    counted_at: str = ""


_world = World()


def current() -> World:
    """The world that `setup` joined; a single process before that."""
    return _world


def enter(world: World) -> None:
    """Make `world` the current one. Only `setup` (and the tests' rank pool) calls this."""
    global _world
    _world = world


def environment() -> Mapping[str, str]:
    """This process's environment variables, with those that tell a rank its place under torchrun's names."""
    return {**os.environ, **_by_slurm(), **json.loads(os.environ.get(PLACE, "{}"))}


def _by_slurm() -> dict[str, str]:
    """The place of a task that `srun` started without torchrun, one for each device."""
    given = os.environ
    if "RANK" in given or given.get("SLURM_STEP_NUM_TASKS", "1") == "1":
        return {}
    first = re.match(r"([^,\[]*)(?:\[(\w+))?", given["SLURM_STEP_NODELIST"])  # as n[001-004,17],m3
    # Each step of a job has a port of its own.
    port = 20000 + (int(given["SLURM_JOB_ID"]) * 10 + int(given["SLURM_STEP_ID"])) % 20000
    return {
        "MASTER_ADDR": given.get("MASTER_ADDR") or "".join(part or "" for part in (first.groups() if first else ())),
        "MASTER_PORT": given.get("MASTER_PORT") or str(port),
        "RANK": given["SLURM_PROCID"],
        "WORLD_SIZE": given["SLURM_STEP_NUM_TASKS"],
    }


def rank() -> int:
    """This process's rank, 0 to `world_size() - 1`; 0 before `setup`."""
    return _world.rank


def local_rank() -> int:
    """This process's rank on its own machine; 0 before `setup`."""
    return _world.local_rank


def world_size() -> int:
    """The number of ranks, over all machines; 1 before `setup`."""
    return _world.world_size


def device_count(otherwise: int | None = None) -> int:
    """What `torch.cuda.device_count()` is in the original: the ranks, where there are several; each sees one device.

    Ranks that were started plainly count what the process sees that has started them: more than it started ranks for,
    where `device_ids` names a part of them. Before `setup` a rank is told by its environment.

    Args:
        otherwise: what to return where `setup` starts no ranks, because the script sets up DDP itself.
    """
    _world.counted_at = here().line
    if otherwise is not None and not _is_own_rank():
        return otherwise
    ranks = _world.world_size if _world.ready else int(environment().get("WORLD_SIZE", "1"))
    # (One rank of several that go on counts as they did.)
    return (
        max(ranks, int(os.environ.get(GPUS, ranks))) if ranks > 1 or GPUS in os.environ else torch.cuda.device_count()
    )


def _is_own_rank() -> bool:
    """Whether this is a rank that `setup` has started, or that it will join."""
    return _world.ready or PLACE in os.environ


def is_main() -> bool:
    """Whether this is rank 0, the one that prints and writes files."""
    return _world.rank == 0


def wants_cpu() -> bool:
    """Whether this run stays on the CPU: nothing else is there, or `DP2DDP_DEVICE=cpu`."""
    return os.environ.get("DP2DDP_DEVICE", "").lower() == "cpu" or accelerator() is None


def accelerator() -> torch.device | None:
    """The kind of device to which `nn.DataParallel` moves a model; None if there is nothing but the CPU, or MPS."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    found: Any = getattr(torch, "accelerator", None)  # from torch 2.6 on
    if found is not None:
        kind: torch.device | None = found.current_accelerator() if found.is_available() else None
        return None if kind is None or kind.type == "mps" else kind
    return None


def hide_cuda_if_unwanted() -> None:
    """With `DP2DDP_DEVICE=cpu`, make the script's own `torch.cuda.is_available()` say no, here and in the ranks."""
    if os.environ.get("DP2DDP_DEVICE", "").lower() == "cpu" and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@overload
def device() -> torch.device: ...


@overload
def device(otherwise: Any) -> Any: ...


def device(otherwise: Any = None) -> Any:
    """This rank's device, as a `torch.device`; `otherwise`, if given, where `setup` starts no ranks.

    Before `setup` it is `cuda` without a number, which means the current device: `setup` will make it this rank's. In a
    process group that the script has made itself, it is the current one's number.
    """
    if _world.ready:
        return _world.device
    if otherwise is not None and not _is_own_rank():
        return otherwise
    if wants_cpu():
        return torch.device("cpu")
    if dist.is_initialized() and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return accelerator()


def numbered_device() -> torch.device:
    """`device()`, always with its number."""
    found = device()
    return torch.device("cuda", torch.cuda.current_device()) if found == torch.device("cuda") else found
