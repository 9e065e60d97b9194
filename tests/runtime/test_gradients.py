"""Gradients over the ranks: buckets, their order, pieces, what is sparse, and whose rows lead where."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from backwards import a_row_each, bucket_sizes, step
from dp2ddp_runtime import gradients, large
from dp2ddp_runtime import model as models
from dp2ddp_runtime.world import world
from rank_pool import RankPool, on_ranks
from torch import nn


def sums_of_every_kind() -> list[torch.Tensor]:
    """Of tensors that aren't contiguous, complex, half; what one all-reduce adds in a wider type."""
    rank = world.rank
    turned = torch.arange(6.0).view(3, 2).t() * (rank + 1)
    low = torch.full((1000,), 256.0 + rank, dtype=torch.bfloat16)
    given = ([turned, torch.ones(2)], [torch.full((2,), rank + 1j)], [low])
    return [total for each in given for total in gradients.sums(each)]


def test_sums_of_every_kind(ranks: RankPool) -> None:
    for turned, ones, complexes, low in ranks(2, sums_of_every_kind):
        assert turned.equal(torch.arange(6.0).view(3, 2).t() * 3)
        assert ones.tolist() == [2.0, 2.0]
        assert complexes.tolist() == [1 + 2j, 1 + 2j]
        assert low.dtype == torch.bfloat16
        assert low[0] == torch.tensor(513.0).bfloat16()


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t() if x[0, 0] == 1 else x.repeat(1, 2)[:, :3]


@on_ranks(2, each=[[[1.0] * 2] * 3, [[2.0] * 2] * 3])
def test_a_rank_that_reaches_no_parameter_takes_part() -> list[Any]:
    """It takes part all the same, and gets what the others have; in the parameter's own format."""
    net = models.wrap_model(Turned())
    history = []
    for _ in range(2):
        net(a_row_each()).sum().backward()
        assert net.module.weight.grad.stride() == net.module.weight.stride()
        history.append(net.module.weight.grad.tolist())
    return history


def sparse_where_none_is_declared() -> str:
    net = models.wrap_model(ByHand())
    with pytest.raises(RuntimeError, match=r"belongs to no nn\.Embedding"):
        net(torch.tensor([1, 2])).sum().backward()
    return "raised"


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(x, self.table, sparse=True)


def dense_where_sparse_is_declared() -> str:
    net = models.wrap_model(TiedEmbedding())
    with pytest.raises(RuntimeError, match="sparse=False"):
        net(torch.tensor([1, 2])).sum().backward()
    return "raised"


class TiedEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 2, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embed(x) @ self.embed.weight.t()


@on_ranks(2, each=[2.0, 2.0])
def test_a_sparse_gradient_of_a_single_row() -> Any:
    index = torch.tensor([[1, 3]])[:, :1]  # contiguous, and its strides are those of two
    grad = torch.sparse_coo_tensor(index, torch.ones(1, 2), (4, 2), check_invariants=False)
    (total,) = gradients.sums([grad], sparse=True)
    assert total.is_sparse
    return total.to_dense()[1].tolist()


@on_ranks(2, each=(True, False))
def test_what_no_output_hangs_on_has_no_gradient_where_a_module_has_a_backward_hook() -> Any:
    net = models.wrap_model(Severed())
    net.module.register_full_backward_hook(lambda *told: None)
    x = torch.ones(2, 2, requires_grad=True)
    net(x).sum().backward()
    return x.grad is None, net.module.last.weight.grad is None


class Severed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(x.detach())
        return out


def test_sparse_gradients_where_they_can_not_be_summed(ranks: RankPool) -> None:
    assert ranks(2, sparse_where_none_is_declared) == ["raised"] * 2
    assert ranks(2, dense_where_sparse_is_declared) == ["raised"] * 2


@on_ranks(2, each=[[0.0], [1.0], [0.0]])
def test_an_embedding_that_a_rank_does_not_use() -> Any:
    """A rank that doesn't use an embedding adds nothing. (torch's DataParallel can't add its zeros to the others'.)"""
    net = models.wrap_model(Words())
    net(torch.tensor([1, -1])).sum().backward()
    grad = net.module.embed.weight.grad
    assert grad.is_sparse
    return grad.to_dense().tolist()


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 1, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embed(x) if x[0] >= 0 else torch.ones(len(x), 1)


class Probe(nn.Module):
    """Notes during backward how many buckets are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            x.register_hook(
                lambda grad: self.seen.append(sum(len(each._begun) for each in gradients.Sums.running.values()))
            )
        return x


@pytest.mark.skipif(torch.__version__ < "2.2", reason="nodes have no numbers of their own")
@on_ranks(2, each=[4, 4, 4])  # two layers'
def test_buckets_are_sent_while_backward_runs() -> list[int]:
    probe = Probe()
    net = models.wrap_model(nn.Sequential(nn.Linear(2, 2), probe, nn.Linear(2, 2), nn.Linear(2, 2)))
    with bucket_sizes():
        for _ in range(3):
            step(net)
    return probe.seen


class Severing(nn.Module):
    """Leads to its input where the first number of its rows is large."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.tanh()
        return self.layer(x if x[0, 0] > 0 else x.detach())


def led_to_as_the_rows_say(by_hand: bool) -> None:
    torch.manual_seed(0)
    before, large.LARGE = large.LARGE, 0
    try:
        alone = [nn.Linear(2, 4), Severing()]
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
    finally:
        large.LARGE = before


@pytest.mark.parametrize("by_hand", [False, True])
def test_models_take_turns_where_the_rows_lead_to_another(ranks: RankPool, by_hand: bool) -> None:
    ranks(2, led_to_as_the_rows_say, by_hand)


class Encoded(nn.Module):
    """An encoder runs once for a batch, ahead of several forwards (pixel-nerf's); `replicate` broadcasts its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()
        self.register_buffer("latent", torch.zeros(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) + self.latent


@on_ranks(2, 3, each=True)
def test_a_buffer_that_is_computed_outside_of_the_forward_passes_its_gradient_on() -> bool:
    torch.manual_seed(0)
    alone = Encoded()
    net = models.wrap_model(copy.deepcopy(alone))
    x = torch.randn(7, 4).double()
    for module, call in ((alone, alone), (net.module, net)):
        module.latent = module.encoder(x[0])
        sum((call(x * number) ** 2).mean() for number in (1, 2)).backward()
    for own, other in zip(alone.parameters(), net.parameters()):
        torch.testing.assert_close(other.grad, own.grad)
    return True
