"""Averaging sparse gradients (`nn.Embedding(sparse=True)`) over the ranks, without making them dense."""

from __future__ import annotations

from typing import Any

import torch

from . import world
from .collectives import all_gather, bytes_of, carrier


def average(grad: torch.Tensor | None, param: torch.Tensor, group: Any) -> torch.Tensor | None:
    """The sum of the ranks' gradients divided by their number, coalesced; None if no rank has one.

    Args:
        grad: this rank's sparse COO gradient, None if it has none.
        param: the parameter, for its shape, dtype and device.
        group: the process group that carries it. All ranks must call.

    Raises:
        RuntimeError: the gradient is dense (the parameter is also used elsewhere than in its embedding).
    """
    if grad is not None and grad.layout != torch.sparse_coo:
        raise RuntimeError(
            f"the weight of a sparse embedding (shape {tuple(param.shape)}) has a dense gradient, because it is also "
            "used elsewhere: build the embedding with sparse=False"
        )
    route = carrier(param.device)
    own = [-1, 0] if grad is None else [grad._nnz(), grad.sparse_dim()]
    told = [row.tolist() for row in _gather(torch.tensor(own, device=route), group)]
    counts, dims = [count for count, _ in told], max(dim for _, dim in told)
    most = max(counts)
    if most < 0:
        return None
    indices = torch.zeros((dims, most), dtype=torch.int64, device=route)
    values = torch.zeros((most, *param.shape[dims:]), dtype=param.dtype, device=route)
    if grad is not None:
        indices[:, : grad._nnz()] = grad._indices()
        values[: grad._nnz()] = grad._values()
    all_indices, all_values = _gather(indices, group), _gather(values.div_(world.world_size()), group)
    kept = [(i[:, :n], v[:n]) for i, v, n in zip(all_indices, all_values, counts) if n >= 0]
    rows = torch.cat([i for i, _ in kept], 1).to(param.device)
    data = torch.cat([v for _, v in kept]).to(param.device)
    return torch.sparse_coo_tensor(rows, data, param.shape, check_invariants=False).coalesce()


def _gather(tensor: torch.Tensor, group: Any) -> list[torch.Tensor]:
    rows = all_gather(bytes_of(tensor.contiguous()), group)
    return [row.view(tensor.dtype).view(tensor.shape) for row in rows.unbind(0)]
