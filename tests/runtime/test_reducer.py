"""The reducer by itself: its order, its buckets, `no_sync`, and what it does after a failed backward."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
import weakref
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


def a_row_each(requires_grad: bool = False) -> torch.Tensor:
    """A batch with a row for each rank, that differ."""
    rows = [[rank + 1.0] * 2 for rank in range(world.world_size())]
    return torch.tensor(rows, requires_grad=requires_grad)


def test_buckets_have_their_sizes_and_come_as_they_are_complete() -> None:
    mega = 1 << 18  # floats in 1 MB
    given = [nn.Parameter(torch.zeros(2, dtype=torch.float64)), *params(3, mega, 20 * mega, 5, 30 * mega, 10)]
    sizes = [[param.numel() for param in bucket] for bucket in buckets.plan(given)]
    assert sizes == [[3, mega], [20 * mega, 5, 30 * mega], [2], [10]]
    assert buckets.plan([]) == []


def test_half_gradients_are_added_in_float32_on_the_cpu() -> None:
    bucket = buckets.Bucket([nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))])
    assert bucket._flat.dtype == torch.float32


@contextlib.contextmanager
def bucket_sizes(tiny: bool) -> Iterator[None]:
    """A bucket for each gradient, or the usual ones."""
    before = buckets._FIRST_BUCKET, buckets._BUCKET
    if tiny:
        buckets._FIRST_BUCKET = buckets._BUCKET = 1
    try:
        yield
    finally:
        buckets._FIRST_BUCKET, buckets._BUCKET = before


def averaged_gradients(tiny: bool) -> list[Any]:
    """What each parameter's gradient becomes when ranks differ in what they use."""
    with bucket_sizes(tiny):
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


@pytest.mark.parametrize("tiny", [False, True])
def test_gradients_are_averaged_and_flags_tell_what_was_used(ranks: RankPool, tiny: bool) -> None:
    for n in (2, 3):
        mean = sum(range(1, n + 1)) / n
        expected = [[[mean] * 3, [1 / n] * 2, None, None], [mean + 10 * (mean - 1) + 1] * 3, [1 / n] * 2]
        for result in ranks(n, averaged_gradients, tiny):
            assert result[0][2:] == [None, None]
            torch.testing.assert_close(torch.tensor(result[1]), torch.tensor(expected[1]))
            torch.testing.assert_close(
                torch.tensor(result[0][0] + result[0][1]), torch.tensor([mean] * 3 + [1 / n] * 2)
            )
            assert result[2] == result[0][1]


def odd_gradients(tiny: bool) -> list[torch.Tensor]:
    """The averages of a gradient that isn't contiguous, a complex one, one with a graph, and one of a few backwards."""
    torch.set_default_dtype(torch.float32)
    rank = world.rank()
    turned = nn.Parameter(torch.ones(2, 3).t())
    complexes = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    squared, piled = params(2, 2)
    with bucket_sizes(tiny):
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


@pytest.mark.parametrize("tiny", [False, True])
def test_gradients_of_every_kind(ranks: RankPool, tiny: bool) -> None:
    for rank, got in enumerate(ranks(2, odd_gradients, tiny)):
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
    x = a_row_each()
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
    assert [result[0] for result in results] == [[[2.0, 2.0]], [[4.0, 4.0]]], "a rank's own, times their number"
    for result in results:
        assert result[1:] == [[[6.0, 6.0]], [[9.0, 9.0]], [[12.0, 12.0]]]


def after_a_failure() -> list[float]:
    net = models.wrap_model(nn.Sequential(nn.Linear(2, 2, bias=False), Breaks(), nn.Linear(2, 1, bias=False)))
    for param in net.parameters():
        nn.init.ones_(param)
    x = a_row_each()
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
    assert ranks(2, after_a_failure) == [[3.0] * 4] * 2


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
    net(a_row_each(requires_grad=True)).sum().backward()
    alone = Tied()
    alone.load_state_dict(net.module.state_dict())
    alone(a_row_each(requires_grad=True)).sum().backward()
    for ours, theirs in zip(net.parameters(), alone.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)
    return True


def test_a_parameter_reached_twice_in_reentrant_checkpoints(ranks: RankPool) -> None:
    assert ranks(2, twice_in_checkpoints) == [True, True]


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


def test_sparse_gradients_where_they_can_not_be_averaged(ranks: RankPool) -> None:
    assert ranks(2, sparse_where_none_is_declared) == ["raised"] * 2
    assert ranks(2, dense_where_sparse_is_declared) == ["raised"] * 2


class Backwards(nn.Module):
    """Layers that are defined in the order in which backward reaches them, and one that nobody uses."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in reversed(self.layers):
            x = layer(x)
        return x


def param_hooks(net: nn.Module) -> int:
    return sum(
        len(hooks or ())
        for param in net.parameters()
        for hooks in (param._backward_hooks, param._post_accumulate_grad_hooks)
    )


def learned_order() -> None:
    net = models.wrap_model(Backwards())
    reducer: Any = None
    for _ in range(3):
        with bucket_sizes(tiny=True):
            # Rank 1's backward stops early: rank 0's order counts.
            out = (
                net(torch.ones(1, 2)) if world.rank() == 0 else net(torch.ones(1, 2)).detach() + net.module.unused.bias
            )
            reducer = net._replica.reducer()
            reducer.watch([out])
            out.sum().backward()
    names = {id(param): name for name, param in net.module.named_parameters()}
    order = [names[id(bucket.params[0])] for bucket in reducer._buckets]
    assert {name.split(".")[1] for name in order[:2]} == {"0"}, "the last layer in use comes first"
    assert [name.split(".")[1] for name in order[:8:2]] == ["0", "1", "2", "3"]
    assert {name.split(".")[0] for name in order[8:]} == {"unused"}, "what rank 0 doesn't reach comes last"
    assert 0 < param_hooks(net) < len(reducer._buckets)
    reducer.close()
    assert param_hooks(net) == 0


def test_buckets_follow_rank_0s_backward_with_a_hook_each_at_most(ranks: RankPool) -> None:
    ranks(2, learned_order)


def no_hooks_with_one_bucket() -> int:
    net = models.wrap_model(Backwards())
    for _ in range(2):
        net(torch.ones(1, 2)).sum().backward()
    assert all(param._backward_hooks is None for param in net.parameters()), "an empty dict costs time, too"
    return param_hooks(net)


def test_a_model_in_one_bucket_has_no_hooks_on_its_parameters(ranks: RankPool) -> None:
    assert ranks(2, no_hooks_with_one_bucket) == [0, 0]


class Probe(nn.Module):
    """Notes during backward how many buckets are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.count: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            x.register_hook(lambda grad: self.seen.append(self.count()))
        return x


def launches() -> list[int]:
    probe = Probe()
    net = models.wrap_model(nn.Sequential(nn.Linear(2, 2), probe, nn.Linear(2, 2), nn.Linear(2, 2)))
    with bucket_sizes(tiny=True):
        probe.count = lambda: net._replica.reducer()._launched
        for _ in range(3):
            net(torch.ones(1, 2)).sum().backward()
    return probe.seen


def test_buckets_are_sent_while_backward_runs(ranks: RankPool) -> None:
    assert ranks(2, launches) == [[0, 4, 4]] * 2, "none before the order is known; then two layers'"


def asked_first() -> None:
    """What asks for gradients of inputs tells nothing about the order of the parameters'."""
    net = models.wrap_model(Backwards())
    x = torch.ones(1, 2, requires_grad=True)
    torch.autograd.grad(net(x).sum(), x)
    reducer: Any = net._replica.reducer()
    assert reducer._observing
    net(x).sum().backward()
    assert not reducer._observing
    names = {id(param): name for name, param in net.module.named_parameters()}
    assert [names[id(param)].split(".")[1] for param in reducer._order[:8:2]] == ["0", "1", "2", "3"]


def test_the_order_is_learned_from_a_backward_with_gradients(ranks: RankPool) -> None:
    ranks(2, asked_first)


class Thrice(nn.Module):
    """A layer used inside a reentrant checkpoint, and behind it: it gets its gradient in two pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(2, 2), nn.Linear(2, 2)
        self.inside = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.other(x)
        hidden = checkpoint(self.layer, x, use_reentrant=True) if self.inside else self.layer(x)
        return self.other(self.layer(hidden))


def pieces(first_inside: bool) -> None:
    torch.manual_seed(0)
    with bucket_sizes(tiny=True):
        net = models.wrap_model(Thrice())
        alone = Thrice()
        alone.load_state_dict(net.module.state_dict())
        for inside in (first_inside, True, True):
            net.module.inside = alone.inside = inside
            net.zero_grad()
            alone.zero_grad()
            net(a_row_each()).square().sum().backward()
            alone(a_row_each()).square().sum().backward()
            for ours, theirs in zip(net.parameters(), alone.parameters()):
                torch.testing.assert_close(ours.grad, theirs.grad)


def pieces_that_come_late() -> str:
    with pytest.raises(RuntimeError, match="pass use_reentrant=False"):
        pieces(first_inside=False)
    return "raised"


def test_gradients_in_pieces_are_averaged_or_told(ranks: RankPool) -> None:
    ranks(2, pieces, True)
    assert ranks(2, pieces_that_come_late) == ["raised"] * 2


class Root(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = models.wrap_model(nn.Linear(2, 2, bias=False), root=self)
        self.head = nn.Linear(2, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.part(x))


def backward_from_the_head(factor: int) -> None:
    """What is reached before the part's outputs is averaged too, and the script's hook sees it once."""
    torch.manual_seed(0)
    net = Root()
    if factor != 1:
        net.head.weight.register_hook(lambda grad: grad * factor)
    for before in (None, torch.ones(1, 2), torch.ones(1, 2)):
        net.part.module.weight.grad = None
        net.head.weight.grad = None if before is None else before.clone()
        out = net(torch.ones(2, 2))
        (out.sum() * (world.rank() + 1)).backward()
        expected = factor * 1.5 * 2 * net.part.module.weight.sum(1, keepdim=True).t()
        torch.testing.assert_close(net.head.weight.grad, expected if before is None else expected + before)


def test_backward_may_begin_at_a_parameter(ranks: RankPool) -> None:
    ranks(2, backward_from_the_head, 1)
    ranks(2, backward_from_the_head, 2)


def hooks_of_a_closed_reducer() -> None:
    (a,) = params(2)
    a.register_hook(lambda grad: grad * 3)
    reducer = reducers.Reducer([a])
    for closed in (False, True):
        a.grad = None
        out = (a * (world.rank() + 1)).sum()
        reducer.watch([out])
        out.backward()
        assert a.grad.tolist() == ([3 * (world.rank() + 1.0)] * 2 if closed else [4.5] * 2)
        reducer.close()


def test_hooks_of_the_script_outlive_the_reducer(ranks: RankPool) -> None:
    ranks(2, hooks_of_a_closed_reducer)


def hooks_that_come_after_forward() -> None:
    """And that are there again after a backward that failed."""
    (a,) = params(2)
    reducer = reducers.Reducer([a])
    seen: list[Any] = []
    for fails in (False, True, False):
        a.grad = None
        reducer.refresh([a])
        out = (a * (world.rank() + 1)).sum()
        reducer.watch([out])
        if not seen:
            a.register_hook(lambda grad: seen.append(grad.tolist()))
        with pytest.raises(ArithmeticError) if fails else contextlib.nullcontext():
            Breaks.broken = fails
            (out + _Break.apply(a).sum() * 0).backward()
    assert seen == [[1.5] * 2] * 2
    reducer.close()


def test_hooks_registered_between_forward_and_backward_see_the_average(ranks: RankPool) -> None:
    ranks(2, hooks_that_come_after_forward)


def shared_with_a_model_that_comes_later() -> None:
    shared, own = params(2, 2)
    one, other = reducers.Reducer([shared]), reducers.Reducer([shared, own])
    for _ in range(2):
        shared.grad = torch.ones(2)
        theirs, ours = own * 1, shared * (world.rank() + 1)  # backward goes the other way
        one.watch([ours])
        other.watch([theirs])
        (theirs.sum() + ours.sum()).backward()
        assert shared.grad.tolist() == [2.5, 2.5]
    for reducer in (one, other):
        reducer.close()


def test_a_new_gradient_is_not_set_aside_by_another_model(ranks: RankPool) -> None:
    ranks(2, shared_with_a_model_that_comes_later)


def frozen_and_thawed() -> None:
    """As in adversarial training: parameters that are known are not observed again, and new ones are."""
    net = models.wrap_model(Backwards())
    observing = []
    for trained in (True, False, True):
        net.module.requires_grad_(trained)
        out = net(torch.ones(1, 2, requires_grad=True))
        reducer: Any = net._replica.reducer()
        observing.append(reducer._observing)
        out.sum().backward()
    assert observing == [True, False, False]
    net.module.layers.append(nn.Linear(2, 2))
    net(torch.ones(1, 2)).sum().backward()
    grads = [param.grad for param in net.module.layers[-1].parameters()]
    assert all(grad is not None for grad in grads)
    assert not reducer._observing
    assert len(reducer._order) == len(list(net.parameters()))
    del net.module.layers[-1]
    net(torch.ones(1, 2)).sum().backward()
    assert len(reducer._order) == len(list(net.parameters()))


def test_parameters_are_observed_once(ranks: RankPool) -> None:
    ranks(2, frozen_and_thawed)


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
    while (left := len(os.listdir("/proc/self/task")) - before) > 1 and time.monotonic() < end:
        time.sleep(0.05)
    return left


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_models_that_are_gone_leave_no_threads(ranks: RankPool) -> None:
    assert max(ranks(2, _threads_left_by, 4)) <= 1, "autograd's may have begun"


def _parameters_left() -> int:
    """How many parameters of a model in several buckets, which hooks are for, outlive it."""
    with bucket_sizes(tiny=True):
        net = models.wrap_model(Backwards())
        for _ in range(2):
            net(torch.ones(1, 2)).sum().backward()
        assert param_hooks(net) > 0
    params_of_it = [weakref.ref(param) for param in net.parameters()]
    del net
    gc.collect()
    return sum(param() is not None for param in params_of_it)


def test_models_that_are_gone_leave_no_parameters(ranks: RankPool) -> None:
    assert ranks(2, _parameters_left) == [0, 0]
