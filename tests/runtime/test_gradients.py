"""Gradients over the ranks: what is sparse, whose rows lead where, what a failure leaves, who writes into weights."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import pytest
import torch
from dp2ddp_runtime import checks, gradients, large
from dp2ddp_runtime import model as models
from dp2ddp_runtime.world import world
from modules import Made
from rank_pool import RankPool, on_ranks
from torch import nn


def a_row_each() -> torch.Tensor:
    """A batch with a row for each rank, that differ."""
    rows = [[rank + 1.0] * 2 for rank in range(world.size)]
    return torch.tensor(rows)


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


def by_hand(self: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.embedding(x, self.table, sparse=True)


def tied(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.embed(x) @ self.embed.weight.t()


@on_ranks(2)
def test_sparse_gradients_where_they_can_not_be_summed() -> None:
    for net, told in (
        (Made(by_hand, table=nn.Parameter(torch.ones(4, 2))), r"belongs to no nn\.Embedding"),  # sparse, undeclared
        (Made(tied, embed=nn.Embedding(4, 2, sparse=True)), "sparse=False"),  # dense, declared as sparse
    ):
        with pytest.raises(RuntimeError, match=told):
            models.wrap_model(net)(torch.tensor([1, 2])).sum().backward()


def of_words(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.embed(x) if x[0] >= 0 else torch.ones(len(x), 1)


@on_ranks(2, each=[[0.0], [1.0], [0.0]])
def test_an_embedding_that_a_rank_does_not_use() -> Any:
    """A rank that doesn't use an embedding adds nothing. (torch's DataParallel can't add its zeros to the others'.)"""
    net = models.wrap_model(Made(of_words, embed=nn.Embedding(3, 1, sparse=True)))
    net(torch.tensor([1, -1])).sum().backward()
    grad = net.module.embed.weight.grad
    assert grad.is_sparse
    return grad.to_dense().tolist()


def severing(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Leads to its input where the first number of its rows is large."""
    x = x.tanh()
    return self.layer(x if x[0, 0] > 0 else x.detach())


def led_to_as_the_rows_say(by_hand: bool) -> None:
    torch.manual_seed(0)
    with mock.patch.object(large, "LARGE", 0):
        alone = [nn.Linear(2, 4), Made(severing, layer=nn.Linear(4, 1))]
        ours = [models.wrap_model(copy.deepcopy(net)) for net in alone]
        optimizers = [torch.optim.SGD(net.parameters(), 0.01) for net in [*ours, *alone]]
        for signs in ((1, 1), (1, 1), (1, -1), (-1, 1), (1, -1)):
            first = torch.rand(4, 2).add(0.1).tensor_split(2)
            x = torch.cat([half * sign for half, sign in zip(first, signs)])
            with torch.no_grad():
                for net in (ours[0].module, alone[0]):
                    net.weight.abs_()
                    net.bias.zero_()
            losses = [ours[1](ours[0](x)), torch.cat([alone[1](alone[0](half)) for half in x.chunk(2)])]
            for nets, loss in zip((ours, alone), losses):
                params = [param for net in nets for param in net.parameters()]
                if by_hand:
                    for param, grad in zip(params, torch.autograd.grad(loss.square().mean(), params)):
                        param.grad = grad
                else:
                    loss.square().mean().backward()
            for own, other in zip(ours, alone):
                for param, expected in zip(own.parameters(), other.parameters()):
                    torch.testing.assert_close(param.grad, expected.grad)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize("by_hand", [False, True])
def test_models_take_turns_where_the_rows_lead_to_another(ranks: RankPool, by_hand: bool) -> None:
    ranks(2, led_to_as_the_rows_say, by_hand)


@on_ranks(2, 3)
def test_a_buffer_that_is_computed_outside_of_the_forward_passes_its_gradient_on() -> None:
    """An encoder runs once for a batch, ahead of several forwards (pixel-nerf's); `replicate` broadcasts its buffer."""
    torch.manual_seed(0)
    parts = {"encoder": nn.Linear(4, 3), "head": nn.Linear(4, 3), "latent": torch.zeros(3)}
    alone = Made(lambda self, x: self.head(x) + self.latent, **parts).double()
    net = models.wrap_model(copy.deepcopy(alone))
    x = torch.randn(7, 4).double()
    for module, call in ((alone, alone), (net.module, net)):
        module.latent = module.encoder(x[0])
        sum((call(x * number) ** 2).mean() for number in (1, 2)).backward()
    for own, other in zip(alone.parameters(), net.parameters()):
        torch.testing.assert_close(other.grad, own.grad)


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
    with mock.patch.object(gradients, "BUCKETS", [1, 1]), pytest.raises(ArithmeticError):
        net(x).sum().backward()
    Breaks.broken = False
    net.zero_grad()
    net(x).sum().backward()
    assert not gradients.Sums.running
    assert all(param.grad.equal(old) for param, old in zip(net.parameters(), before))
    return net.module[0].weight.grad.flatten().tolist()


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
    """Gives its weight other memory in each forward, on all ranks or on those with large rows, and an attribute."""

    only_large = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.only_large or float(x.max()) > 1:
            self.weight.data = nn.functional.normalize(self.weight.data)
        self.weight.calls = getattr(self.weight, "calls", 0) + 1  # type: ignore[assignment]
        return super().forward(x)


@on_ranks(2, each=[5, 1.0, 1.0])
def test_a_weight_that_gets_other_memory_keeps_it() -> list[float]:
    net = models.wrap_model(Normalised(2, 2, bias=False))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(4):
        optimizer.zero_grad()
        net(a_row_each()).square().sum().backward()
        optimizer.step()
    net(a_row_each())
    found = [net.module.weight.calls, *net.module.weight.norm(dim=1).tolist()]
    net.module.only_large = True
    with pytest.raises(RuntimeError, match=r"assigns to the \.data of a parameter on some ranks only"):
        net(a_row_each())
    return [round(each, 5) for each in found]


def scaling(self: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-self.scale[0]) * self.layer(x).square().sum(1) + self.scale.sum()


@on_ranks(2, 3)
def test_a_second_derivative_that_comes_by_no_output_of_a_parameter_with_a_hook() -> None:
    torch.manual_seed(0)
    alone = Made(scaling, layer=nn.Linear(3, 2), scale=nn.Parameter(torch.zeros(2))).double()
    net = models.wrap_model(copy.deepcopy(alone))
    x, found = torch.randn(6, 3).double(), []
    for module, call in ((alone, alone), (net.module, net)):
        params = [*module.parameters()]
        module.scale.register_hook(lambda grad: grad * 2)
        grads = torch.autograd.grad(call(x).mean(), params, create_graph=True)
        found.append(torch.autograd.grad(sum(each.square().sum() for each in grads), params))
    torch.testing.assert_close(found[1], found[0])


def holding(self: Any, x: torch.Tensor, limit: float) -> torch.Tensor:
    return self.held[0](self.layer(x)) if float(x.detach().sum()) > limit else self.layer(x)


@on_ranks(2)
def test_what_a_module_only_holds_has_a_gradient_where_a_rank_uses_it() -> None:
    """As an architecture search switches layers off: zeros would let momentum and weight decay move them."""
    net = models.wrap_model(Made(holding, layer=nn.Linear(2, 2), held=[nn.Linear(2, 2), nn.Linear(2, 2)]))
    one, none = net.module.held
    found = []
    for limit in (1.5, 3.5, 9.0):
        for each in (net, one, none):
            each.zero_grad()
        net(a_row_each(), limit).sum().backward()
        found.append([each.weight.grad is not None for each in (net.module.layer, one, none)])
    assert found == [[True, True, False], [True, True, False], [True, False, False]]
