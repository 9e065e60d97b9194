"""What a backward leaves behind: copies, the state after a failure, hooks, parameters."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from backwards import Breaks, a_row_each, bucket_sizes
from dp2ddp_runtime import checks, gradients
from dp2ddp_runtime import model as models
from dp2ddp_runtime.world import world
from rank_pool import RankPool, on_ranks
from torch import nn


class Scaled(nn.Linear):
    """Scales its weight, by a tensor that autograd sees or not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(self.recorded):
            self.weight.mul_(2)
        return super().forward(x)


@on_ranks(2, each=[16.0, 16.0])
def test_a_weight_is_written_into_without_grad_only() -> list[float]:
    net = models.wrap_model(Scaled(2, 1, bias=False))
    nn.init.ones_(net.module.weight)
    net.module.recorded = False
    for _ in range(3):
        net(a_row_each()).sum().backward()
    net.module.recorded = True
    with pytest.raises(RuntimeError, match=r"writes into its parameter 'weight' while gradients are recorded"):
        net(a_row_each())
    return net.module.weight.tolist()[0]


@on_ranks(2, each=[3.0] * 4)
def test_a_backward_that_failed_leaves_no_trace() -> list[float]:
    net = models.wrap_model(nn.Sequential(nn.Linear(2, 2, bias=False), Breaks(), nn.Linear(2, 1, bias=False)))
    for param in net.parameters():
        nn.init.ones_(param)
    x = a_row_each()
    for _ in range(2):  # then sums begin while backward runs
        with torch.no_grad():
            net.module[0].weight.mul_(1)
        net.zero_grad()
        net(x).sum().backward()
    before = [param.grad.clone() for param in net.parameters()]
    Breaks.broken = True
    with bucket_sizes(), pytest.raises(ArithmeticError):
        net(x).sum().backward()
    Breaks.broken = False
    net.zero_grad()
    net(x).sum().backward()
    assert not gradients.Sums.running
    assert all(param.grad.equal(old) for param, old in zip(net.parameters(), before))
    return net.module[0].weight.grad.flatten().tolist()


@on_ranks(2)
def test_hooks_registered_between_forward_and_backward_see_the_sum() -> None:
    """And that are there again after a backward that failed."""
    net = models.wrap_model(nn.Sequential(nn.Linear(2, 1, bias=False), Breaks()))
    weight = net.module[0].weight
    seen: list[Any] = []
    for fails in (False, True, False):
        weight.grad = None
        out = net(a_row_each()).sum()
        if not seen:
            weight.register_hook(lambda grad: seen.append(grad.tolist()))
        Breaks.broken = fails
        with pytest.raises(ArithmeticError) if fails else contextlib.nullcontext():
            out.backward()
    assert seen == [[[3.0] * 2]] * 2


def outside_of_the_model(noise: float, steps_made: int) -> Any:
    """A parameter that lies in no wrapped model, whose gradient's last bits aren't the same on all ranks."""
    torch.manual_seed(0)
    net = models.wrap_model(nn.Linear(2, 2))
    centers = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([*net.parameters(), centers], 0.1)
    for _ in range(steps_made):
        optimizer.zero_grad()
        wrong = 1 + noise * world.rank
        ((net(a_row_each()) - centers) * wrong + net.module.bias * wrong).square().sum().backward()
        optimizer.step()
    return [param.tolist() for param in [*net.parameters(), centers]]


def test_what_lies_in_no_wrapped_model_does_not_drift(ranks: RankPool) -> None:
    """Nor what is used past one; unless that is no matter of rounding."""
    one, other = ranks(2, outside_of_the_model, 1e-6, 5)
    assert one[1:] == other[1:]
    told = ranks(2, _told_apart)
    assert all("a gradient of shape [1] differs between the ranks" in each for each in told)


def _told_apart() -> str:
    net, twin = models.wrap_model(nn.Linear(2, 1)), models.wrap_model(nn.Linear(2, 1))
    optimizer = torch.optim.SGD([*net.parameters(), *twin.parameters()], 0.1)
    (net(a_row_each()).sum() + twin(a_row_each()).sum() + world.rank * net.module.bias.sum()).backward()
    with pytest.raises(RuntimeError) as raised:
        checks.before_step(optimizer, (), {})
    return str(raised.value)


class Normalised(nn.Linear):
    """Gives its weight other memory in each forward: on all ranks, or on those with large rows."""

    only_large = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.only_large or float(x.max()) > 1:
            self.weight.data = nn.functional.normalize(self.weight.data)
        return super().forward(x)


@on_ranks(2, each=[1.0, 1.0])
def test_a_weight_that_gets_other_memory_keeps_it() -> list[float]:
    net = models.wrap_model(Normalised(2, 2, bias=False))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        net(a_row_each()).square().sum().backward()
        optimizer.step()
    net(a_row_each())
    norms = net.module.weight.norm(dim=1)
    net.module.only_large = True
    with pytest.raises(RuntimeError, match=r"assigns to the \.data of a parameter on some ranks only"):
        net(a_row_each())
    return [round(each, 5) for each in norms.tolist()]
