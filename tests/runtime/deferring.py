"""Batches that are deferred: small ones, made large, and how many exchanges a piece of a script takes."""

from __future__ import annotations

from typing import Any, Callable

import torch
from dp2ddp_runtime.batches import deferred, loader
from dp2ddp_runtime.model import scatter_gather
from dp2ddp_runtime.ranks import exchange
from torch.utils.data import DataLoader, TensorDataset

ROWS = 7  # uneven on 2 and on 3 ranks


def data(rows: int = ROWS, width: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(rows, width, 8, 8, generator=generator), torch.randint(5, (rows,), generator=generator)


def batches(size: int = ROWS, rows: int = ROWS, **options: Any) -> Any:
    return loader.shard_loader(DataLoader(TensorDataset(*data(rows)), size, **options))


def batch(**options: Any) -> tuple[deferred.Deferred, deferred.Deferred]:
    x, y = next(iter(batches(**options)))
    assert isinstance(x, deferred.Deferred)
    assert isinstance(y, deferred.Deferred)
    return x, y


def exchanges(action: Callable[[], Any]) -> int:
    """How many exchanges a piece of a script takes."""
    before = exchange._count
    action()
    return exchange._count - before


class Large:
    """Makes everything large: nothing travels along, and outputs stay deferred."""

    def __enter__(self) -> None:
        self.before = deferred.SMALL, scatter_gather.LARGE
        deferred.SMALL, scatter_gather.LARGE = 0, 0

    def __exit__(self, *error: object) -> None:
        deferred.SMALL, scatter_gather.LARGE = self.before
