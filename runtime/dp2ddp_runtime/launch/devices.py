"""Which GPU is a rank's: the only one that it sees, `cuda:0` there as in the process that it replaces; or its CPU."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn, Union

import torch

from ..base import world
from ..base.location import here
from . import launcher
from .failure import flush

DeviceIds = Union[None, int, str, torch.device, "Sequence[int | str | torch.device]"]

_VISIBLE = "CUDA_VISIBLE_DEVICES"
if torch.version.hip is not None and "HIP_VISIBLE_DEVICES" in os.environ:
    _VISIBLE = "HIP_VISIBLE_DEVICES"
_ASK_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
_asks_nvml = False
_AS_IN_ENVIRONMENT = re.compile(r"-?\d+(\s*,\s*-?\d+)*|(GPU|MIG)-.+")


def take_own() -> None:
    """In a rank that was told which GPU is its own: let CUDA see no other, whatever the script chooses before `setup`.

    CUDA reads the environment once, at its first use, which this is. In a launcher's rank it has to stay unread until
    `setup` has chosen, so until then torch asks NVML whether there are GPUs.
    """
    global _asks_nvml
    env = world.environment()
    if launcher.JOINED in env:
        return
    if world.GPU in env:
        _show_only(env[world.GPU])
    elif world.PLACE not in env and env.get("WORLD_SIZE", "1") != "1" and _ASK_NVML not in env:
        os.environ[_ASK_NVML], _asks_nvml = "1", True


def ask_cuda() -> None:
    """Torch asks CUDA itself again, here and in what the script starts, unless the user has it ask NVML."""
    global _asks_nvml
    if _asks_nvml:
        os.environ.pop(_ASK_NVML, None)
    _asks_nvml = False


def make_visible(device_ids: DeviceIds) -> DeviceIds:
    """Of text such as "2,3" CUDA_VISIBLE_DEVICES, as scripts set it themselves: None is left, all that are visible."""
    if not isinstance(device_ids, str) or not _AS_IN_ENVIRONMENT.fullmatch(device_ids.strip()):
        return device_ids
    if world.GPU not in os.environ and launcher.JOINED not in os.environ:  # a rank of a plain start sees its own
        os.environ[_VISIBLE] = device_ids
        _forget_count()
    return None


def parse_device_ids(device_ids: DeviceIds) -> list[int] | None:
    """CUDA indices, or None; SystemExit if an entry is neither a CUDA device nor an index.

    -1 and None are what they are to `torch.cuda.set_device` and `.cuda()`: no choice, so the first. One that is there
    again counts again, as for `nn.DataParallel`: so does a list of `ddp.device()`, the only one that a rank sees.
    """
    if device_ids is None:
        return None
    if isinstance(device_ids, (int, torch.device)):
        device_ids = [device_ids]
    entries = [*filter(None, [device_ids])] if isinstance(device_ids, str) else device_ids
    found = [re.fullmatch(r"(?:cuda:)?(\d+)|cuda|-1|None", str(entry).strip()) for entry in entries]
    if None in found:
        raise SystemExit(f"dp2ddp: device_ids must name CUDA devices, such as [0, 1] or 'cuda:1', not {device_ids!r}")
    return [int(each[1] or 0) for each in found if each]


def process_count(device_ids: Sequence[int] | None) -> int:
    """How many ranks a plain start gets (see `setup`); SystemExit if there aren't as many devices."""
    is_single = world.wants_cpu() or world.accelerator() != torch.device("cuda") or device_ids == []
    asked = os.environ.get("DP2DDP_NPROC", "").strip() or ("1" if is_single else "")
    if asked.isdigit():
        return int(asked)
    if asked:
        raise SystemExit(f"dp2ddp: DP2DDP_NPROC must be a number, not {asked!r}")
    visible, device_ids = torch.cuda.device_count(), device_ids or []
    missing = ", ".join(f"cuda:{index}" for index in device_ids if index >= visible)
    if missing:
        there = f"only {visible} CUDA device(s) are visible, which DP2DDP_NPROC={visible} takes"
        raise SystemExit(f"dp2ddp: device_ids asks for {missing}, but {there}")
    return len(device_ids) or visible


def gpu_variables(device_ids: Sequence[int] | None, nproc: int) -> list[dict[str, str]]:
    """The variables that give each of `nproc` ranks its GPU: the visible ones, those of `device_ids` first."""
    if world.wants_cpu() or device_ids == [] or world.accelerator() != torch.device("cuda"):
        return [{}] * nproc
    entries = _entries()
    order = [index for index in dict.fromkeys([*(device_ids or ()), *range(len(entries))]) if index < len(entries)]
    gpus = [entries[order[rank % len(order)]] for rank in range(nproc)]
    # As many as the original sees, or would with as many GPUs as there are ranks.
    count = len(entries) if device_ids else min(nproc, len(entries))
    return [{_VISIBLE: gpu, world.GPU: gpu, world.GPUS: str(count)} for gpu in gpus]


def chosen_since() -> list[str]:
    """The GPUs that the script has made visible since this rank has begun, which sees its own one alone."""
    given = os.environ.get(_VISIBLE, "")
    is_new = world.GPU in os.environ and given != os.environ[world.GPU]
    return [each.strip() for each in given.split(",") if each.strip() and is_new]


def compare_wrap(device_ids: DeviceIds) -> None:
    """RuntimeError if a model is wrapped for another number of devices than `setup` has started ranks for.

    Not where the user has said how many there shall be, nor on the CPU or in a rank's child, which have no devices.
    """
    place, count = world.current(), len(parse_device_ids(device_ids) or ())
    if not place.set_up_at or world.wants_cpu() or "DP2DDP_NPROC" in os.environ:
        return
    ranks = place.local_world_size
    if count not in (0, ranks, place.world_size) and world.accelerator() == torch.device("cuda"):
        raise RuntimeError(
            f"device_ids names {count} device(s) at {here().line}, but the ddp.setup() at {place.set_up_at} started "
            f"{ranks} rank(s) on this machine: give setup the same device_ids, have a launcher start as many, or let "
            "DP2DDP_NPROC or CUDA_VISIBLE_DEVICES say how many"
        )


def choose_device(device_ids: Sequence[int] | None, place: world.World) -> torch.device:
    """This rank's device, of which it is made the current one.

    Where a launcher shows a rank several GPUs, it sees its own one only from here on. If CUDA has read the
    environment already, this process's command starts again to that end, as a plain start does. SystemExit for
    several ranks on an accelerator that isn't CUDA, and where CUDA was asked for its devices too early.
    """
    if world.wants_cpu() or device_ids == []:
        return torch.device("cpu")
    accelerator = world.accelerator()
    if accelerator is not None and accelerator.type != "cuda":
        if place.world_size > 1 or _count(accelerator) > 1:
            kind = accelerator.type
            raise SystemExit(
                f"dp2ddp: several ranks train on CUDA devices, or on the CPU (DP2DDP_DEVICE=cpu), not on {kind}"
            )
        return accelerator
    index = next(iter(device_ids or ()), 0)
    if place.world_size > 1:
        index = 0
        _see_own_only(device_ids, place)
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    return device


def _see_own_only(device_ids: Sequence[int] | None, place: world.World) -> None:
    own = os.environ.get(world.GPU)
    if own is not None and not _show_only(own):
        raise SystemExit(
            f"dp2ddp: CUDA was used with {_VISIBLE} as the script sets it, before it imported dp2ddp_runtime: "
            "import dp2ddp_runtime above the line that does so"
        )
    seen = len(_entries()) if os.environ.get(_ASK_NVML) == "1" else 0
    seen = seen if seen > 1 else _seen()
    if seen > 1:
        before = os.environ.get(_VISIBLE)
        os.environ.update(gpu_variables(device_ids, place.local_world_size)[place.local_rank])
        os.environ[world.GPUS] = str(min(seen, place.local_world_size))
        if not _show_only(os.environ[world.GPU]):
            ask_cuda()
            if _seen() == 0:  # NVML has counted what CUDA can't use: begin anew without NVML
                del os.environ[world.GPU], os.environ[_VISIBLE]
                os.environ.update({_ASK_NVML: "0", **({} if before is None else {_VISIBLE: before})})
            _start_again(place)


def choose_backend(place: world.World) -> str:
    """The backend for this rank's device: NCCL takes each GPU for one rank only.

    That ranks share one is known where they were started plainly, or see fewer GPUs than they are. Else NCCL tells it.
    """
    if place.device.type != "cuda":
        return "gloo"
    gpus = int(os.environ.get(world.GPUS, place.local_world_size))
    if place.local_world_size <= gpus:
        return "nccl"
    shared = f"{place.local_world_size} ranks share {gpus} GPU(s), which is slow"
    warnings.warn(f"{shared}; they talk over gloo, because NCCL needs one GPU per rank", stacklevel=4)
    return "gloo"


def _entries() -> list[str]:
    """The visible GPUs, as the environment names them: by number, or by UUID."""
    _forget_count()
    count = torch.cuda.device_count()
    given = [entry.strip() for entry in os.environ.get(_VISIBLE, "").split(",") if entry.strip()]
    return given[:count] if len(given) >= count else [str(index) for index in range(count)]


def _seen() -> int:
    """How many GPUs CUDA itself sees, for the rest of this process."""
    return int(torch._C._cuda_getDeviceCount())


def _show_only(gpu: str) -> bool:
    """Let CUDA see one GPU; whether it does: it reads the environment at its first use."""
    os.environ[_VISIBLE] = gpu
    _forget_count()
    return _seen() == 1


def _forget_count() -> None:
    """Older torch (2.1) counts devices once, whatever the environment says later."""
    getattr(torch.cuda.device_count, "cache_clear", lambda: None)()


def _start_again(place: world.World) -> NoReturn:
    """Let this process's command begin anew, with the GPU that the environment now names."""
    if sys.platform == "win32":
        raise SystemExit("dp2ddp: CUDA was used before ddp.setup(); start the script plainly, without a launcher")
    flush()
    told = {"LOCAL_RANK": str(place.local_rank), "LOCAL_WORLD_SIZE": str(place.local_world_size)}
    os.chdir(launcher.started_in)
    os.execve(sys.executable, launcher.command(), {**os.environ, **told})


def _count(accelerator: torch.device) -> int:
    found: Any = getattr(torch, "accelerator", None)
    return 1 if found is None else int(found.device_count())


# From malloc.h, see https://man7.org/linux/man-pages/man3/mallopt.3.html
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE = 1 << 28  # bytes of a block that goes back to the system at once
_MOST = 1 << 30  # bytes that are free at the end of the heap


def keep_memory() -> None:
    """Let glibc keep what is freed, rather than give it back and have each of its pages cleared anew in every step.

    A block of 20 MB that comes and goes (a batch, an output) costs 3 to 10 ms of a processor each time; whether it does
    depends on where others happen to lie. Where `MALLOC_..._` or `GLIBC_TUNABLES` are in the environment, they count.
    """
    if any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        return
    with suppress(AttributeError, OSError, TypeError):  # no glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _MOST)
