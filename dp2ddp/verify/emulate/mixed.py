"""Mixed precision of CUDA on the CPU: `autocast` in bfloat16, and a `GradScaler` that scales.

torch switches both off where it finds no driver. Here both stay on, in the original and in its conversion, so that the
comparison sees what scaled losses, skipped steps and outputs of half precision come to.
"""

from __future__ import annotations

from typing import Any

import torch

from dp2ddp.verify.emulate.cuda import is_cuda


def without_cuda() -> None:
    """From now on `autocast` for CUDA casts to bfloat16 on the CPU, whatever dtype it was given (float16 is for GPUs).

    CUDA's `GradScaler` works on the CPU (from torch 2.3 on; older ones have none for the CPU, and it stays off).

    `torch.cuda.amp`'s classes derive from these.
    """
    _redirect_autocast(torch.autocast)
    if hasattr(torch.amp, "GradScaler"):
        _redirect_scaler(torch.amp.GradScaler)


def _redirect_autocast(kind: Any) -> None:
    original = kind.__init__

    def init(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if is_cuda(device_type):
            device_type, dtype = "cpu", torch.bfloat16
        original(self, device_type, dtype, *args, **kwargs)

    kind.__init__ = init


def _redirect_scaler(kind: Any) -> None:
    original = kind.__init__

    def init(self: Any, device: Any = "cuda", *args: Any, **kwargs: Any) -> None:
        original(self, "cpu" if is_cuda(device) else device, *args, **kwargs)

    kind.__init__ = init
