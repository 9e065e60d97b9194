"""A pretend CUDA for machines without a GPU: tensors that say `cuda:i`, with their numbers in the CPU's memory.

    from pretend_cuda import install

    install(devices=2)  # in each process, before anything uses CUDA

Every kernel that torch has for CUDA is replaced by one that calls the CPU's on the same memory (`native/`). All above
the kernels is torch itself, as it is installed: the dispatcher, autograd, autocast, `torch.cuda`, `nn.DataParallel`.
So this shows what a run on the CPU can't: a tensor that was left on the wrong device, a wrong current device, a draw
from the wrong device's generator, copies between devices in each step (`copies`).

Not pretended: the order of streams, NCCL's timing, memory, cuDNN, CUDA graphs, what is compiled for the device
(`torch.compile`, extensions in CUDA), quantized, CSR and nested tensors on a device.
"""

from __future__ import annotations

from typing import Any

import torch

from .build import PretendCudaUnavailableError
from .counts import Copy, copies, reset_copies

__all__ = ["Copy", "PretendCudaUnavailableError", "copies", "install", "is_fixed", "reset_copies"]

_held: list[Any] = []  # what must live as long as the process


def is_fixed() -> bool:
    """Whether CUDA has read the environment: what a real driver tells `dp2ddp_runtime.gpus.is_fixed`."""
    return any(getattr(each, "is_fixed", False) for each in _held)


def install(devices: int = 2) -> None:
    """Let this process, and those that it forks, have `devices` CUDA devices, for as long as they live.

    `CUDA_VISIBLE_DEVICES` may show fewer. Backward runs in the thread that asks for it, and not in one for each device
    as with CUDA: in one order, and what it copies is counted for the script's line.

    Raises:
        PretendCudaUnavailableError: a torch without CUDA in it, no compiler, or CUDA is used already.
    """
    if _held:
        raise PretendCudaUnavailableError("pretend CUDA is installed already; it stays until the process ends")
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call,unused-ignore]
        raise PretendCudaUnavailableError("pretend CUDA can't be installed: this process uses a real one already")
    from . import build, kernels, module, replicas
    from .counts import listen
    from .pretend_devices import Devices

    library = build.load()
    module.install_collectives()
    known = Devices(library, devices)
    if library.pretend_install() < 0:
        raise PretendCudaUnavailableError(f"pretend CUDA can't replace the kernels of torch {torch.__version__}")
    listen(library)
    _held.extend([library, known, kernels.install()])
    module.install(known, library)
    replicas.install()
    torch.autograd.set_multithreading_enabled(False)
