"""What tests of gradients share: a row for each rank, buckets of one gradient each, a layer whose backward fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from dp2ddp_runtime import gradients
from dp2ddp_runtime.world import world
from torch import nn


def a_row_each(requires_grad: bool = False) -> torch.Tensor:
    """A batch with a row for each rank, that differ."""
    rows = [[rank + 1.0] * 2 for rank in range(world.size)]
    return torch.tensor(rows, requires_grad=requires_grad)


@contextlib.contextmanager
def bucket_sizes() -> Iterator[None]:
    """A bucket for each gradient."""
    before = list(gradients.BUCKETS)
    gradients.BUCKETS[:] = 1, 1
    try:
        yield
    finally:
        gradients.BUCKETS[:] = before


class _Break(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        if Breaks.broken:
            raise ArithmeticError
        return grad


class Breaks(nn.Module):
    broken = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Break.apply(x)


def step(net: nn.Module) -> None:
    """A backward, and a change of all parameters."""
    net.zero_grad()
    net(torch.ones(4, 2)).sum().backward()
    with torch.no_grad():
        for param in net.parameters():
            param.mul_(1)
