"""Gradients over the ranks: buckets, their order, pieces, failures; and what a model leaves behind."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from dp2ddp_runtime.base import world
from dp2ddp_runtime.gradients import summing
from dp2ddp_runtime.model import agreement, scatter_gather
from dp2ddp_runtime.model import wrapped as models
from rank_pool import RankPool
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint


def params(*sizes: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size)) for size in sizes]


def a_row_each(requires_grad: bool = False) -> torch.Tensor:
    """A batch with a row for each rank, that differ."""
    rows = [[rank + 1.0] * 2 for rank in range(world.world_size())]
    return torch.tensor(rows, requires_grad=requires_grad)


def test_buckets_have_their_sizes_and_come_as_they_are_complete() -> None:
    mega = 1 << 18  # floats in 1 MB
    given = [nn.Parameter(torch.zeros(2, dtype=torch.float64)), *params(3, mega, 20 * mega, 5, 30 * mega, 10)]
    sizes = [[param.numel() for param in bucket] for bucket in summing.plan(given)]
    assert sizes == [[3, mega], [20 * mega, 5, 30 * mega], [2], [10]]
    assert [[each.numel() for each in bucket] for bucket in summing.plan(given[1:3], given[1:2])] == [[3], [mega]]
    assert summing.plan([]) == []


@contextlib.contextmanager
def bucket_sizes() -> Iterator[None]:
    """A bucket for each gradient."""
    before = summing._FIRST_BUCKET, summing._BUCKET
    summing._FIRST_BUCKET = summing._BUCKET = 1
    try:
        yield
    finally:
        summing._FIRST_BUCKET, summing._BUCKET = before


def sums_of_every_kind() -> list[torch.Tensor]:
    """Of tensors that aren't contiguous, complex, half; what one all-reduce adds in a wider type."""
    rank = world.rank()
    turned = torch.arange(6.0).view(3, 2).t() * (rank + 1)
    low = torch.full((1000,), 256.0 + rank, dtype=torch.bfloat16)
    given = ([turned, torch.ones(2)], [torch.full((2,), rank + 1j)], [low])
    return [total for each in given for total in summing.sum_over_ranks(each)]


def test_sums_of_every_kind(ranks: RankPool) -> None:
    for turned, ones, complexes, low in ranks(2, sums_of_every_kind):
        assert turned.equal(torch.arange(6.0).view(3, 2).t() * 3)
        assert ones.tolist() == [2.0, 2.0]
        assert complexes.tolist() == [1 + 2j, 1 + 2j]
        assert low.dtype == torch.bfloat16
        assert low[0] == torch.tensor(513.0).bfloat16()


def graph_nodes(tensor: torch.Tensor) -> int:
    """How many nodes a tensor's graph has."""
    seen, todo = {None}, [tensor.grad_fn]
    while todo:
        node: Any = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += [behind for behind, _ in node.next_functions]
    return len(seen) - 1


class Cut(nn.Module):
    """Its weight is what the script makes of it, between two steps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if getattr(self, "writes", False) and x[0, 0] > 1:
            with torch.no_grad():
                self.weight.mul_(1)
        return x @ self.weight.t()


def what_lasts() -> list[Any]:
    """Copies last from step to step, and follow what is done to the parameters meanwhile."""
    net = models.wrap_model(Cut())
    weight = net.module.weight
    graphs = []
    for _ in range(4):
        net(a_row_each()).square().sum().backward(create_graph=True)
        graphs.append(graph_nodes(weight.grad))
        net.zero_grad()
    weight.data = weight.data[:3]  # where it was
    shapes = [tuple(net(a_row_each()).shape)]
    weight.data = torch.arange(4.0).view(2, 2)
    net(a_row_each()).sum().backward()
    weight.data = weight.data.t()
    turned = net(a_row_each()).equal(net.module(a_row_each()))
    fresh = models.wrap_model(Cut())
    fresh.module.writes = True  # on the rank that has the row for it
    for _ in range(3):
        fresh(a_row_each()).sum().backward()
    kept = fresh(a_row_each()).sum()
    with fresh.no_sync():  # which changes nothing
        kept.backward(retain_graph=True)
    fresh.module.weight.data = fresh.module.weight.data.clone()
    (kept + fresh(a_row_each()).sum()).backward()
    return [len(set(graphs)), shapes, turned, fresh.module.weight.grad.unique().tolist()]


def test_copies_last_and_follow_their_parameters(ranks: RankPool) -> None:
    assert ranks(2, what_lasts) == [[1, [(2, 3)], True, [18.0]]] * 2


class Scaled(nn.Linear):
    """Scales its weight, by a tensor that autograd sees or not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(self.recorded):
            self.weight.mul_(2)
        return super().forward(x)


def writes_into_a_weight() -> list[float]:
    net = models.wrap_model(Scaled(2, 1, bias=False))
    nn.init.ones_(net.module.weight)
    net.module.recorded = False
    for _ in range(3):
        net(a_row_each()).sum().backward()
    net.module.recorded = True
    with pytest.raises(RuntimeError, match=r"writes into its parameter '0\.weight' while gradients are recorded"):
        net(a_row_each())
    return net.module.weight.tolist()[0]


def test_a_weight_is_written_into_without_grad_only(ranks: RankPool) -> None:
    assert ranks(2, writes_into_a_weight) == [[16.0, 16.0]] * 2


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 3).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.t() if x[0, 0] == 1 else x.repeat(1, 2)[:, :3]


def a_rank_whose_rows_use_nothing() -> list[Any]:
    """It takes part all the same, and gets what the others have; in the parameter's own format."""
    net = models.wrap_model(Turned())
    history = []
    for _ in range(2):
        net(a_row_each()).sum().backward()
        assert net.module.weight.grad.stride() == net.module.weight.stride()
        history.append(net.module.weight.grad.tolist())
    return history


def test_a_rank_that_reaches_no_parameter_takes_part(ranks: RankPool) -> None:
    assert ranks(2, a_rank_whose_rows_use_nothing) == [[[[1.0] * 2] * 3, [[2.0] * 2] * 3]] * 2


def after_a_failure() -> list[float]:
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
    assert not summing._begun
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
    assert ranks(2, after_a_failure) == [[3.0] * 4] * 2


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


def test_sparse_gradients_where_they_can_not_be_summed(ranks: RankPool) -> None:
    assert ranks(2, sparse_where_none_is_declared) == ["raised"] * 2
    assert ranks(2, dense_where_sparse_is_declared) == ["raised"] * 2


def sparse_on_one_rank() -> Any:
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


def test_an_embedding_that_a_rank_does_not_use(ranks: RankPool) -> None:
    assert ranks(2, sparse_on_one_rank) == [[[0.0], [1.0], [0.0]]] * 2


def step(net: nn.Module) -> None:
    """A backward, and a change of all parameters."""
    net.zero_grad()
    net(torch.ones(4, 2)).sum().backward()
    with torch.no_grad():
        for param in net.parameters():
            param.mul_(1)


class Probe(nn.Module):
    """Notes during backward how many buckets are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            x.register_hook(lambda grad: self.seen.append(sum(map(len, summing._begun.values()))))
        return x


def launches() -> list[int]:
    probe = Probe()
    net = models.wrap_model(nn.Sequential(nn.Linear(2, 2), probe, nn.Linear(2, 2), nn.Linear(2, 2)))
    with bucket_sizes():
        for _ in range(3):
            step(net)
    return probe.seen


@pytest.mark.skipif(torch.__version__ < "2.2", reason="nodes have no numbers of their own")
def test_buckets_are_sent_while_backward_runs(ranks: RankPool) -> None:
    assert ranks(2, launches) == [[0, 4, 4]] * 2, "none in the first backward; then two layers'"


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
    before, scatter_gather.LARGE = scatter_gather.LARGE, 0
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
        scatter_gather.LARGE = before


@pytest.mark.parametrize("by_hand", [False, True])
def test_models_take_turns_where_the_rows_lead_to_another(ranks: RankPool, by_hand: bool) -> None:
    ranks(2, led_to_as_the_rows_say, by_hand)


class Thrice(nn.Module):
    """A layer used inside a reentrant checkpoint, and behind it: it gets its gradient in two pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.other, self.layer = nn.Linear(2, 2), nn.Linear(2, 2)
        self.inside = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.other(x)
        hidden = checkpoint(self.layer, x, use_reentrant=True) if self.inside else self.layer(x)
        return self.other(self.layer(hidden))


def pieces(first_inside: bool) -> None:
    torch.manual_seed(0)
    with bucket_sizes():
        net = models.wrap_model(Thrice())
        alone = Thrice()
        alone.load_state_dict(net.module.state_dict())
        for inside in (first_inside, True, True):
            net.module.inside = alone.inside = inside
            for model in (net, alone):
                model.zero_grad()
                model(a_row_each()).square().sum().backward()
            for ours, theirs in zip(net.parameters(), alone.parameters()):
                torch.testing.assert_close(ours.grad, theirs.grad)
            with torch.no_grad():
                net.module.layer.bias.mul_(1)


def pieces_that_come_late() -> str:
    with pytest.raises(RuntimeError, match="pass use_reentrant=False"):
        pieces(first_inside=False)
    return "raised"


def test_gradients_in_pieces_are_summed_or_told(ranks: RankPool) -> None:
    ranks(2, pieces, True)
    if torch.__version__ >= "2.2":
        assert ranks(2, pieces_that_come_late) == ["raised"] * 2


def hooks_that_come_after_forward() -> None:
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


def test_hooks_registered_between_forward_and_backward_see_the_sum(ranks: RankPool) -> None:
    ranks(2, hooks_that_come_after_forward)


def sent_once() -> list[int]:
    """How many buckets a backward through several forwards sends."""
    net = models.wrap_model(nn.Linear(2, 1))
    x = a_row_each()
    loss = (net(x) + net(x * 2)).sum() + net(x).sum()
    sent: list[int] = []
    x.requires_grad_().register_hook(lambda grad: sent.append(sum(map(len, summing._begun.values()))))
    (loss + x.sum()).backward()
    return sent


def test_forwards_between_two_changes_share_a_sum(ranks: RankPool) -> None:
    assert max(max(each, default=1) for each in ranks(2, sent_once)) <= 1


def outside_of_the_model(noise: float, steps_made: int) -> Any:
    """A parameter that lies in no wrapped model, whose gradient's last bits aren't the same on all ranks."""
    torch.manual_seed(0)
    net = models.wrap_model(nn.Linear(2, 2))
    centers = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([*net.parameters(), centers], 0.1)
    handle = register_optimizer_step_pre_hook(agreement._before_step)
    for _ in range(steps_made):
        optimizer.zero_grad()
        wrong = 1 + noise * world.rank()
        ((net(a_row_each()) - centers) * wrong + net.module.bias * wrong).square().sum().backward()
        optimizer.step()
    handle.remove()
    return [param.tolist() for param in [*net.parameters(), centers]]


def test_what_lies_in_no_wrapped_model_does_not_drift(ranks: RankPool) -> None:
    """Nor what is used past one; unless that is no matter of rounding."""
    one, other = ranks(2, outside_of_the_model, 1e-6, 5)
    assert one[1:] == other[1:]
    told = ranks(2, _told_apart)
    assert all("the gradient of parameter 'bias' differs between ranks" in each for each in told)


def _told_apart() -> str:
    net, twin = models.wrap_model(nn.Linear(2, 1)), models.wrap_model(nn.Linear(2, 1))
    optimizer = torch.optim.SGD([*net.parameters(), *twin.parameters()], 0.1)
    (net(a_row_each()).sum() + twin(a_row_each()).sum() + world.rank() * net.module.bias.sum()).backward()
    with pytest.raises(RuntimeError) as raised:
        agreement._before_step(optimizer, (), {})
    return str(raised.value)


def _threads_left_by(models_made: int) -> int:
    """How many more threads there are after some models that were trained and are gone."""
    gc.collect()  # those of other tests
    before = len(os.listdir("/proc/self/task"))
    for _ in range(models_made):
        net = models.wrap_model(nn.Linear(2, 1))
        net(torch.ones(4, 2)).sum().backward()
        del net
        gc.collect()
    end = time.monotonic() + 10  # the system may need a moment
    while (left := len(os.listdir("/proc/self/task")) - before) > 5 and time.monotonic() < end:
        time.sleep(0.05)
    return left


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_models_have_no_threads_of_their_own(ranks: RankPool) -> None:
    ranks(2, _threads_left_by, 1)
    assert max(ranks(2, _threads_left_by, 4)) <= 1, "autograd's may have begun"


def _parameters_left() -> int:
    """How many parameters of a model in several buckets outlive it."""
    with bucket_sizes():
        net = models.wrap_model(nn.Sequential(*(nn.Linear(2, 2) for _ in range(4))))
        step(net)
        step(net)
    params_of_it = [weakref.ref(param) for param in net.parameters()]
    del net
    gc.collect()
    return sum(param() is not None for param in params_of_it)


def test_models_that_are_gone_leave_no_parameters(ranks: RankPool) -> None:
    assert ranks(2, _parameters_left) == [0, 0]
