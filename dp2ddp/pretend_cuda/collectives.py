"""Process groups: what is called NCCL here is gloo, on the memory of the pretend devices."""

from __future__ import annotations

from typing import Any

import torch

from .errors import PretendCudaUnavailableError


def install() -> None:
    """Make the backend `nccl` of `torch.distributed` create gloo's; what is asked of the group stays as it is."""
    from torch.distributed import distributed_c10d as c10d

    backends: Any = c10d.Backend
    if not hasattr(backends, "_ensure_backend_registered") or not hasattr(c10d, "_create_gloo_process_group"):
        raise PretendCudaUnavailableError(
            f"pretend CUDA doesn't know the torch.distributed of {torch.__version__}; it was made for 2.15"
        )
    backends._ensure_backend_registered("nccl")
    known = backends._plugins
    if "NCCL" not in known or not c10d.is_gloo_available():
        raise PretendCudaUnavailableError("pretend CUDA: torch.distributed has no NCCL to stand in for, or no gloo")

    def create(options: Any, backend_options: object | None) -> Any:
        return c10d._create_gloo_process_group(options, None)

    known["NCCL"] = known["NCCL"]._replace(creator_fn=create, extended_api=True)
