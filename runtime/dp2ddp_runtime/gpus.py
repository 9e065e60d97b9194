"""Which GPUs ranks have: each sees rank 0's, its own first.

Rank r's CUDA_VISIBLE_DEVICES is rank 0's with the entries of device 0 and device r *exchanged* (`device_ids=[2, 3]`:
entries 2 and 3). So `cuda:0`, `.cuda(device_ids[0])`, `torch.cuda.device_count()`, properties, `set_device`, threads
and libraries are right without an edit.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Callable

import torch

from .world import world

#: What is replaced, and why; `docs/architecture.md` has the table.
REPLACED = {
    "os._Environ.__setitem__": "what says that a rank sees its own GPU first stays, whatever the script sets it to",
    "os._Environ.__delitem__": "the same",
    "torch.cuda.device_count": "without GPUs it is what DP2DDP_NPROC or a launcher says: by it scripts wrap",
}
VISIBLE = "CUDA_VISIBLE_DEVICES"
if torch.version.hip is not None and "HIP_VISIBLE_DEVICES" in os.environ:
    VISIBLE = "HIP_VISIBLE_DEVICES"


def wants_cpu() -> bool:
    """Whether this run stays on the CPU: `DP2DDP_DEVICE=cpu`, or no CUDA device. Doesn't initialise CUDA."""
    return os.environ.get("DP2DDP_DEVICE", "").lower() == "cpu" or _count() == 0


def is_on_cpu() -> bool:
    """The same at a wrap, when CUDA itself may be asked: NVML also counts GPUs for which the driver is too old."""
    return wants_cpu() or not torch.cuda.is_available()


def _count() -> int:
    count = getattr(torch.cuda.device_count, "real", torch.cuda.device_count)
    getattr(count, "cache_clear", lambda: None)()  # torch 2.1 counts once, whatever comes later
    return int(count())


def show_asked() -> None:
    """From now on a script that asks how many devices there are is told what DP2DDP_NPROC or a launcher says,
    where there are no GPUs.
    """
    count: Any = torch.cuda.device_count
    number = asked() or world.launched
    if not number or not wants_cpu() or hasattr(count, "real"):
        return

    def device_count() -> int:
        return number

    device_count.real = count  # type: ignore[attr-defined]
    torch.cuda.device_count = device_count


def asked() -> int | None:
    """How many devices there are to be had, as `DP2DDP_NPROC` says; None without it. SystemExit if it is no number."""
    text = os.environ.get("DP2DDP_NPROC", "").strip()
    if text and not (text.isdigit() and int(text)):
        raise SystemExit(f"dp2ddp: DP2DDP_NPROC must be a number of devices, not {text!r}")
    return int(text) if text else None


def devices() -> int:
    """How many devices there are to be had, on this machine."""
    return asked() or (1 if wants_cpu() else _count())


def at_most() -> int:
    """How many there may be, should the script set the variable further down."""
    found = devices()
    return 2 if found == 1 and asked() is None and not wants_cpu() and VISIBLE in os.environ else found


def local_size(size: int) -> int:
    """How many of `size` ranks are on this machine, where the launcher doesn't say."""
    return size if wants_cpu() else min(size, _count())


def named(device_ids: Any) -> list[int] | None:
    """The indices of what `nn.DataParallel` is given; None for all devices. SystemExit if an entry is no CUDA device.

    -1 and None are what they are to `torch.cuda.set_device` and `.cuda()`: no choice, so the first.
    """
    if device_ids is None or device_ids == "":
        return None
    if isinstance(device_ids, (int, str, torch.device)):
        device_ids = [device_ids]
    found = [re.fullmatch(r"(?:cuda:)?(\d+)|cuda|-1|None|cpu", str(entry).strip()) for entry in device_ids]
    if None in found:
        raise SystemExit(f"dp2ddp: device_ids must name CUDA devices, such as [0, 1] or 'cuda:1', not {device_ids!r}")
    return [int(each[1] or 0) for each in found if each] or None


def wanted(device_ids: Any, here: int = 0) -> list[int]:
    """The devices of the ranks of this machine, in their order.

    Args:
        device_ids: as a wrap is given them.
        here: how many ranks a launcher has started on this machine; 0 without one.

    Raises:
        SystemExit: one of them isn't there.
    """
    ids = named(device_ids)
    on_cpu = is_on_cpu()
    most = here or asked() or (1 if on_cpu else _count())
    if on_cpu:
        return list(range(min(len(ids or range(most)), most)))
    count = _count()
    missing = [index for index in ids or () if index >= count]
    if missing and not here and asked() is None:
        raise SystemExit(
            f"dp2ddp: device_ids asks for cuda:{missing[0]}, and {count} CUDA device(s) are visible: name fewer, or "
            f"set DP2DDP_NPROC={count}"
        )
    return [index % count for index in (ids or range(most))[:most]]


def visible() -> list[str]:
    """The visible GPUs, as the environment names them: by number, or by UUID."""
    if wants_cpu():
        return []
    count = _count()
    given = [entry.strip() for entry in os.environ.get(VISIBLE, "").split(",") if entry.strip()]
    return given[:count] if len(given) >= count else [str(index) for index in range(count)]


def exchanged(entries: Sequence[str], ids: Sequence[int], rank: int) -> list[str]:
    """The entries, with those of the first device and of the rank's one exchanged."""
    first, own = ids[0], ids[rank % len(ids)]
    order = list(entries)
    order[first], order[own] = order[own], order[first]
    return order


def take_own(born: Mapping[str, Any], local_rank: int) -> dict[str, str]:
    """The variable that gives a rank its GPU; empty on the CPU."""
    entries = born["visible"] if born["machine"] == socket.gethostname() else visible()
    if not entries or os.environ.get("DP2DDP_DEVICE", "").lower() == "cpu":
        return {}
    return {VISIBLE: ",".join(exchanged(entries, born["ids"], local_rank))}


def is_fixed() -> bool:
    """Whether CUDA has read the environment: it does once, at its first use (`torch.cuda.is_available()` is one)."""
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) != 3  # CUDA_ERROR_NOT_INITIALIZED
    return False


def hold(change: Mapping[str, str]) -> None:
    """From now on this rank sees its GPUs so, whatever the script sets the variable to.

    Raises:
        SystemExit: CUDA was used with others, before `setup`.
    """
    if not change:
        return
    if is_fixed() and any(os.environ.get(name) != text for name, text in change.items()):
        raise SystemExit(
            f"dp2ddp: rank {world.rank}: CUDA was used with {VISIBLE}={os.environ.get(VISIBLE)} before ddp.setup(), "
            f"and this rank's is {change.get(VISIBLE)}: set PYTORCH_NVML_BASED_CUDA_CHECK=1, so that "
            "torch.cuda.is_available() uses no GPU, or call ddp.setup() ahead of that"
        )
    os.environ.update(change)
    kind: Any = type(os.environ)
    for name in ("__setitem__", "__delitem__"):
        setattr(kind, name, _holding(getattr(kind, name), frozenset(change)))


def _holding(real: Callable[..., None], held: frozenset[str]) -> Callable[..., None]:
    @functools.wraps(real)
    def change(environment: Any, name: Any, *text: Any) -> None:
        if environment is not os.environ or name not in held:
            real(environment, name, *text)

    return change


def shares(ids: Sequence[int], here: int) -> bool:
    """Whether several of the `here` ranks of this machine have one GPU, which NCCL doesn't take."""
    return not is_on_cpu() and len(set(ids)) < here


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
