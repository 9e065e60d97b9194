"""torch's own `nn.DataParallel` on pretend CUDA devices, for programs whose tensors are on the CPU."""

from __future__ import annotations

import os
from typing import Any

import pretend_cuda
import torch
from dp2ddp_runtime.nesting import nested
from pretend_cuda.replicas import OracleDataParallel
from torch import nn

#: Replicas that there may be.
DEVICES = 3


def install() -> None:
    """Pretend that this process has devices.

    Raises:
        PretendCudaUnavailableError: it can't be pretended here.
    """
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    pretend_cuda.install(devices=DEVICES)
    torch.cuda.init()  # type: ignore[no-untyped-call]


class OnHost(OracleDataParallel):
    """Its module is on the devices, and what it returns on the CPU again, as what it is given."""

    def __init__(self, module: nn.Module, dim: int = 0, n: int = 2) -> None:
        super().__init__(module.cuda(), list(range(n)), dim=dim)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """As `nn.DataParallel`'s."""
        return nested(lambda tensor: tensor.cpu(), super().forward(*inputs, **kwargs))
