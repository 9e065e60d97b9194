"""A rank looks like the one process that the original is: libraries find no process group; and where ranks meet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_pool import on_ranks
from torch import nn


@on_ranks(2, each=[False, True])
def test_torch_says_what_it_says_without_a_group() -> list[Any]:
    """The original's answers, and its errors."""
    with pytest.raises((RuntimeError, ValueError), match="Default process group has not been initialized"):
        dist.get_rank()
    layer = nn.SyncBatchNorm(2)  # would say that it wants a GPU
    normal = layer(torch.rand(4, 2, generator=torch.Generator().manual_seed(0)))
    return [dist.is_initialized(), normal.mean().abs().item() < 1e-6]
