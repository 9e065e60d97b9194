"""A rank looks like the one process that the original is: libraries find no process group; and where ranks meet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from dp2ddp_runtime import wrap_model
from rank_pool import RankPool, on_ranks
from torch import nn


def with_torchmetrics() -> list[Any]:
    torchmetrics = pytest.importorskip("torchmetrics")
    net = wrap_model(nn.Linear(2, 1, bias=False))
    nn.init.ones_(net.module.weight)
    x = torch.arange(8.0).view(4, 2)
    out = net(x)
    metrics = {
        torchmetrics.SumMetric(): (out.detach(),),
        torchmetrics.ConfusionMatrix(task="binary"): ((out > 6).long()[:, 0], torch.tensor([0, 1, 1, 1])),
        torchmetrics.MeanMetric(): (out.detach(),),
    }
    for metric, arguments in metrics.items():
        metric.update(*arguments)
    return [metric.compute().tolist() for metric in metrics]


def test_torchmetrics_counts_once(ranks: RankPool) -> None:
    pytest.importorskip("torchmetrics")
    assert ranks(2, with_torchmetrics) == [[28.0, [[1, 0], [1, 2]], 7.0]] * 2


@on_ranks(2, each=[False, True])
def test_torch_says_what_it_says_without_a_group() -> list[Any]:
    """The original's answers, and its errors."""
    with pytest.raises((RuntimeError, ValueError), match="Default process group has not been initialized"):
        dist.get_rank()
    layer = nn.SyncBatchNorm(2)  # would say that it wants a GPU
    normal = layer(torch.rand(4, 2, generator=torch.Generator().manual_seed(0)))
    return [dist.is_initialized(), normal.mean().abs().item() < 1e-6]
