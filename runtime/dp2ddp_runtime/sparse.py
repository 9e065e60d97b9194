"""Averaging sparse gradients (`nn.Embedding(sparse=True)`) over the ranks, without making them dense."""

from __future__ import annotations

import torch

from . import world
from .collectives import all_gather, bytes_of, gather_rows


def average(grad: torch.Tensor | None, param: torch.Tensor) -> torch.Tensor | None:
    """The sum of the ranks' gradients divided by their number, coalesced; None if no rank has one. A collective.

    Args:
        grad: this rank's sparse COO gradient, whose values are rows of the parameter; None if it has none.
        param: the parameter, for its shape, dtype and device.

    Raises:
        RuntimeError: the gradient is dense (the parameter is also used elsewhere than in its embedding).
    """
    if grad is not None and grad.layout != torch.sparse_coo:
        raise RuntimeError(
            f"the weight of a sparse embedding (shape {tuple(param.shape)}) has a dense gradient, because it is also "
            "used elsewhere: build the embedding with sparse=False"
        )
    own = torch.tensor([-1 if grad is None else grad._nnz()])
    counts = all_gather(bytes_of(own)).view(torch.int64).flatten().tolist()
    if max(counts) < 0:
        return None
    if grad is None:
        grad = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64), param[:0], param.shape)
    sizes = [max(0, count) for count in counts]
    rows = gather_rows(grad._indices(), sizes, 1)
    values = gather_rows(grad._values() / world.world_size(), sizes, 0)
    return torch.sparse_coo_tensor(rows, values, param.shape, check_invariants=False).coalesce()
