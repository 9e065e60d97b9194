"""`data_parallel` over ranks, and rank 0's answers."""

from __future__ import annotations

import copy

import dp2ddp_runtime as ddp
import torch
from rank_pool import RankPool
from torch import nn

from dp2ddp.verify.emulate.oracle import EmulatedDataParallel


def _steps(module: nn.Module, call) -> list[torch.Tensor]:
    """Parameters after each of a few steps, with batches that don't split evenly."""
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    found = []
    for size in (6, 5, 4, 1, 7):
        optimizer.zero_grad()
        call(torch.randn(size, 4, dtype=torch.float64)).pow(2).sum().backward()
        optimizer.step()
        found.append(torch.cat([p.detach().flatten().clone() for p in module.parameters()]))
    return found


def _module() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def train_functionally() -> tuple[list[torch.Tensor], list[str]]:
    module = _module()
    return _steps(module, lambda x: ddp.data_parallel(module, x)), list(module.state_dict())


def test_functional_form_trains_as_data_parallel(ranks: RankPool) -> None:
    module = _module()
    emulated = EmulatedDataParallel(module, n=3)
    expected = _steps(module, emulated)
    for got, keys in ranks(3, train_functionally):
        assert keys == ["0.weight", "0.bias", "2.weight", "2.bias"]
        for mine, theirs in zip(got, expected):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_functional_form_alone_is_the_module() -> None:
    module = _module()
    x = torch.randn(3, 4, dtype=torch.float64)
    assert torch.equal(ddp.data_parallel(module, (x,)), copy.deepcopy(module)(x))


def answer() -> tuple[object, object]:
    return ddp.broadcast({"rank": ddp.rank()}), ddp.broadcast(ddp.rank() == 0)


def test_rank_0_answers_for_all(ranks: RankPool) -> None:
    assert ranks(2, answer) == [({"rank": 0}, True)] * 2
