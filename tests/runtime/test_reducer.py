"""The reducer by itself: its order, its buckets, `no_sync`, and what it does after a failed backward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from dp2ddp_runtime import buckets, world
from dp2ddp_runtime import model as models
from dp2ddp_runtime import reducer as reducers
from rank_pool import RankPool
from torch import nn
from torch.utils.checkpoint import checkpoint


def params(*sizes: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size)) for size in sizes]


def test_buckets_follow_backward_and_their_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    mega = 1 << 18  # floats in 1 MB
    given = params(10, 30 * mega, 5, 20 * mega, mega, 3)
    given.append(nn.Parameter(torch.zeros(2, dtype=torch.float64)))
    sizes = [[param.numel() for param in bucket] for bucket in buckets.plan(given)]
    assert sizes == [[mega], [20 * mega], [30 * mega], [2], [3, 5, 10]]
    monkeypatch.setattr(buckets, "_ALONE", {})
    sizes = [[param.numel() for param in bucket] for bucket in buckets.plan(given)]
    assert sizes == [[3, mega], [30 * mega], [2], [20 * mega, 5, 10]]
    sizes = [[param.numel() for param in bucket] for bucket in buckets.plan(given[:-1])]
    assert sizes == [[3, mega], [30 * mega], [20 * mega, 5, 10]]


def test_half_gradients_never_travel_alone_on_the_cpu_as_they_are_added_in_float32() -> None:
    weight = nn.Parameter(torch.zeros(1 << 20, dtype=torch.bfloat16))
    (bucket,), last = buckets.make_buckets([weight])
    assert bucket is last
    assert last._flat.dtype == torch.float32


@contextlib.contextmanager
def everything_alone(alone: bool) -> Iterator[None]:
    """Let every gradient travel by itself, however small."""
    before = buckets._ALONE
    buckets._ALONE = {"cpu": 0} if alone else before
    yield
    buckets._ALONE = before


def averaged_gradients(alone: bool) -> list[Any]:
    """What each parameter's gradient becomes when ranks differ in what they use."""
    with everything_alone(alone):
        return _averaged_gradients()


def _averaged_gradients() -> list[Any]:
    torch.set_default_dtype(torch.float64)
    rank = world.rank()
    a, b, c, d = params(3, 2, 2, 1)
    reducer = reducers.Reducer([a, b, c, d])
    out = (a * (rank + 1)).sum() + (b.sum() if rank == 0 else 0) + d.sum().detach()
    reducer.watch([out])
    out.backward()
    first = [None if p.grad is None else p.grad.tolist() for p in (a, b, c, d)]
    kept = a.grad
    again = (a * 10 * rank).sum()
    reducer.watch([again])
    again.backward()
    assert a.grad is kept, "gradients pile up in place, as without the reducer"
    reducer.close()
    a.sum().backward()
    return [first, a.grad.tolist(), b.grad.tolist()]


@pytest.mark.parametrize("alone", [False, True])
def test_gradients_are_averaged_and_flags_tell_what_was_used(ranks: RankPool, alone: bool) -> None:
    for n in (2, 3):
        mean = sum(range(1, n + 1)) / n
        expected = [[[mean] * 3, [1 / n] * 2, None, None], [mean + 10 * (mean - 1) + 1] * 3, [1 / n] * 2]
        for result in ranks(n, averaged_gradients, alone):
            assert result[0][2:] == [None, None]
            torch.testing.assert_close(torch.tensor(result[1]), torch.tensor(expected[1]))
            torch.testing.assert_close(
                torch.tensor(result[0][0] + result[0][1]), torch.tensor([mean] * 3 + [1 / n] * 2)
            )
            assert result[2] == result[0][1]


def odd_gradients(alone: bool) -> list[torch.Tensor]:
    """The averages of a gradient that isn't contiguous, a complex one, one with a graph, and one of a few backwards."""
    torch.set_default_dtype(torch.float32)
    rank = world.rank()
    turned = nn.Parameter(torch.ones(2, 3).t())
    complexes = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    squared, piled = params(2, 2)
    with everything_alone(alone):
        reducer = reducers.Reducer([turned, complexes, squared, piled])
    weights = torch.arange(6.0).view(3, 2) * (rank + 1)
    loss = (turned * weights).sum() + (complexes * (rank + 1j)).imag.sum() + ((squared + rank + 1) ** 3).sum() / 3
    reducer.watch([loss])
    loss.backward(create_graph=True)
    again = (piled * rank).sum()
    reducer.watch([again])
    again.backward()
    assert turned.grad is not None
    assert turned.grad.stride() == turned.stride()
    assert squared.grad is not None
    (second,) = torch.autograd.grad(squared.grad.sum(), squared)
    return [param.grad.detach() for param in (turned, complexes, squared, piled)] + [second]


@pytest.mark.parametrize("alone", [False, True])
def test_gradients_of_every_kind(ranks: RankPool, alone: bool) -> None:
    for rank, got in enumerate(ranks(2, odd_gradients, alone)):
        turned, complexes, squared, piled, second = got
        torch.testing.assert_close(turned, torch.arange(6.0).view(3, 2) * 1.5)
        torch.testing.assert_close(complexes, torch.full((2,), 1.0 + 0.5j))
        torch.testing.assert_close(squared, torch.full((2,), (1 + 4) / 2))
        torch.testing.assert_close(piled, torch.full((2,), 0.5))
        torch.testing.assert_close(second, torch.full((2,), 2.0 * (rank + 1)))


def a_rank_whose_backward_reaches_no_parameter() -> Any:
    (a,) = params(2)
    reducer = reducers.Reducer([a])
    free = torch.zeros(2, requires_grad=True)
    out = a * 4 if world.rank() == 0 else free * 1
    reducer.watch([out])
    out.sum().backward()
    return a.grad.tolist()


def test_a_rank_that_reaches_no_parameter_takes_part(ranks: RankPool) -> None:
    assert ranks(2, a_rank_whose_backward_reaches_no_parameter) == [[2.0, 2.0]] * 2


def without_sync() -> list[Any]:
    torch.manual_seed(0)
    net = models.wrap_model(nn.Linear(2, 1, bias=False))
    weight = net.module.weight
    x = torch.full((1, 2), world.rank() + 1.0)
    history = []
    with net.no_sync():
        net(x).sum().backward()
        history.append(weight.grad.tolist())
    net(x).sum().backward()
    history.append(weight.grad.tolist())
    net(x).sum().backward()
    history.append(weight.grad.tolist())
    with net.no_sync():
        net(x).sum().backward()
    (net(x) * 0).sum().detach()
    net(x[:, :] * 0).sum().backward()
    history.append(weight.grad.tolist())
    return history


def test_no_sync_averages_later_what_piled_up(ranks: RankPool) -> None:
    results = ranks(2, without_sync)
    assert [result[0] for result in results] == [[[1.0, 1.0]], [[2.0, 2.0]]]
    for result in results:
        assert result[1:] == [[[3.0, 3.0]], [[4.5, 4.5]], [[6.0, 6.0]]]


def after_a_failure() -> list[float]:
    net = models.wrap_model(nn.Sequential(nn.Linear(2, 2, bias=False), Breaks(), nn.Linear(2, 1, bias=False)))
    for param in net.parameters():
        nn.init.ones_(param)
    x = torch.full((1, 2), world.rank() + 1.0)
    net(x).sum().backward()
    before = [param.grad.clone() for param in net.parameters()]
    Breaks.broken = True
    with pytest.raises(ArithmeticError):
        net(x).sum().backward()
    Breaks.broken = False
    net.zero_grad()
    net(x).sum().backward()
    assert all(param.grad.equal(old) for param, old in zip(net.parameters(), before))
    return net.module[0].weight.grad.flatten().tolist()


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


def test_a_backward_that_failed_leaves_no_trace(ranks: RankPool) -> None:
    assert ranks(2, after_a_failure) == [[1.5] * 4] * 2


class Tied(nn.Module):
    """A weight used outside a reentrant checkpoint first, then inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.layer, x * 1, use_reentrant=True)
        return checkpoint(self.layer, hidden, use_reentrant=True)


def twice_in_checkpoints() -> Any:
    torch.manual_seed(0)
    net = models.wrap_model(Tied())
    x = torch.full((1, 2), world.rank() + 1.0, requires_grad=True)
    net(x).sum().backward()
    alone = Tied()
    alone.load_state_dict(net.module.state_dict())
    for row in range(world.world_size()):
        (alone(torch.full((1, 2), row + 1.0, requires_grad=True)).sum() / world.world_size()).backward()
    for ours, theirs in zip(net.parameters(), alone.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)
    return True


def test_a_parameter_reached_twice_in_reentrant_checkpoints(ranks: RankPool) -> None:
    assert ranks(2, twice_in_checkpoints) == [True, True]


def sparse_where_none_is_declared() -> str:
    net = models.wrap_model(ByHand())
    with pytest.raises(RuntimeError, match=r"belongs to an nn\.Embedding"):
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


def test_sparse_gradients_where_they_can_not_be_averaged(ranks: RankPool) -> None:
    assert ranks(2, sparse_where_none_is_declared) == ["raised"] * 2
    assert ranks(2, dense_where_sparse_is_declared) == ["raised"] * 2
