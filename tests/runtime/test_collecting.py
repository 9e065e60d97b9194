"""What a forward appends to a list of its module's: each rank's own, which is told of."""

from __future__ import annotations

import warnings
from typing import Any

import dp2ddp_runtime as ddp
import torch
from rank_pool import on_ranks
from torch import nn


class Collecting(nn.Module):
    """Keeps what it has seen in a list, and something of another kind in another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.seen: list[Any] = []
        self.sizes = [3, 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x)
        return self.layer(x)


@on_ranks(2, each=["Collecting.seen"])
def test_a_list_that_forwards_append_to_is_told_of_once() -> list[str]:
    net = ddp.wrap_model(Collecting())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            net(torch.ones(6, 3))
    return [str(each.message).partition("appends to ")[2].partition(":")[0] for each in caught]
