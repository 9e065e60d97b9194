"""Outputs that stay on their ranks: losses and metrics of them, compiled models, half precision."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
from deferring import ROWS, Large, batch, data, exchanges
from dp2ddp_runtime.base import world
from dp2ddp_runtime.batches import deferred, loader
from dp2ddp_runtime.model import wrapped as model
from rank_pool import RankPool, on_ranks
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset


def with_all_large_outputs() -> dict[str, list[Any]]:
    return {kind: with_large_outputs(kind) for kind in with_large_outputs("names")}


def with_large_outputs(kind: str) -> list[Any]:
    """Losses and metrics of outputs that stay where they are; and the same of one process."""
    torch.manual_seed(0)
    net: Any = nn.Conv2d(3, 5, 3, padding=1).double()
    x, _ = data()
    x, target = x.double(), torch.randint(5, (ROWS, 8, 8), generator=torch.Generator().manual_seed(2))
    target[0] = 3
    target[1, :2] = 255
    steps: dict[str, Callable[..., torch.Tensor]] = {
        "ignored": lambda out, t: F.cross_entropy(out, t, ignore_index=255),
        "weighted and smoothed": lambda out, t: F.cross_entropy(
            out, t, torch.arange(1.0, 6).double(), ignore_index=255, label_smoothing=0.1
        ),
        "each": lambda out, t: F.cross_entropy(out, t, ignore_index=255, reduction="none").mean(),
        "module": lambda out, t: nn.CrossEntropyLoss(ignore_index=255)(out, t),
        "nll": lambda out, t: F.nll_loss(F.log_softmax(out, 1), t, ignore_index=255),
        "mse": lambda out, t: F.mse_loss(out[:, 0], (t % 5).double()),
        "bce of sigmoid": lambda out, t: nn.BCELoss()(torch.sigmoid(out[:, 1]), (t == 1).double()),
        "dice": lambda out, t: 1 - (2 * (out.sigmoid()[:, 0] * (t == 0)).sum()) / (out.sigmoid()[:, 0].sum() + 1),
        "dice per sample": lambda out, t: (out.sigmoid()[:, 0].flatten(1) * (t == 0).flatten(1)).sum(1).mean(),
        "mse, broadcast": lambda out, t: F.mse_loss(out[:, :1], (t % 5).double()),
        "kl": lambda out, t: F.kl_div(F.log_softmax(out, 1), F.softmax(out.detach() * 2, 1), reduction="batchmean"),
        "each pixel": lambda out, t: F.cross_entropy(
            out.permute(0, 2, 3, 1).reshape(-1, 5), t.view(-1), torch.arange(1.0, 6).double(), ignore_index=255
        ),
        "flat": lambda out, t: (
            F.mse_loss(out[:, 0].reshape(-1), (t.flip(0) % 5).view(-1).double()) + out.view(-1).mean()
        ),
        "unknown": lambda out, t: torch.cdist(out.flatten(1), out.flatten(1)).mean(),
        "after a look without gradients": _looks_first,
        "in place": lambda out, t: F.cross_entropy(out.mul_(2), t, ignore_index=255),
        "written into": _written_into,
        "function": lambda out, t: _Halved.apply(out).square().mean(),
        "script": lambda out, t: torch.jit.script(_scripted)(out).mean(),
        "legacy": lambda out, t: F.mse_loss(out[:, 0], (t % 5).double(), size_average=False),
    }
    if kind == "names":
        return list(steps)
    if world.world_size() > 1:
        net = model.wrap_model(net)
        x, target = next(iter(loader.shard_loader(DataLoader(TensorDataset(x, target), ROWS))))
    with Large():
        out = net(x)
        assert isinstance(out, deferred.Deferred) is (world.world_size() > 1)
        assert out.requires_grad
        loss = deferred.materialize(steps[kind](out, target))
        loss.backward()
    correct = (out.argmax(1) == target).sum().item()
    return [loss.item(), correct, [p.grad.flatten()[:7].tolist() for p in net.parameters()]]


def _scripted(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + x.size(0)


def _looks_first(out: Any, t: Any) -> torch.Tensor:
    with torch.no_grad():
        out[0].sum().item()
    return F.cross_entropy(out, t, ignore_index=255)


def _written_into(out: Any, t: Any) -> torch.Tensor:
    out = out * 1
    out[:, 0] = 0
    out.clamp_(min=-0.1)
    return F.cross_entropy(out, t, ignore_index=255)


@on_ranks(2, each=[100.0, 10000.0, 100.0])
def test_means_of_narrow_outputs_do_not_overflow() -> list[float]:
    """The sum of an output in half precision is beyond what that can hold; its mean isn't."""
    with Large():
        out = deferred.defer(
            torch.full((400, 400), 100.0).half(), [400] * world.world_size(), allows_reordered_sum=True
        )
        means = [out.mean(), F.mse_loss(out, out * 0), F.l1_loss(out, (out * 0), reduction="mean")]
        assert all(mean.dtype == torch.float16 for mean in means)
        return [mean.item() for mean in means]


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x / 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad / 2


def test_large_outputs_stay_where_they_are(ranks: RankPool) -> None:
    expected = with_all_large_outputs()
    for results in ranks(3, with_all_large_outputs):
        for kind, (loss, correct, grads) in expected.items():
            got = results[kind]
            assert got[0] == pytest.approx(loss, rel=1e-12), kind
            assert got[1] == correct, kind
            for one, other in zip(got[2], grads):
                assert one == pytest.approx(other, rel=1e-10, abs=1e-13), kind


def compiled(first: bool) -> list[Any]:
    """A model that is compiled before or after it is wrapped, and a compiled loss."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    torch.manual_seed(0)
    net: Any = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    net = torch.compile(net, backend=backend) if first else net
    net = model.wrap_model(net)
    net = net if first else torch.compile(net, backend=backend)
    loss = torch.compile(lambda out, y: F.cross_entropy(out, y), backend=backend)
    losses = []
    for _ in range(3):
        x, y = batch()
        taken = exchanges(lambda x=x, y=y: losses.append(loss(net(x), y)))  # type: ignore[misc]
        losses[-1].backward()
    return [[one.item() for one in losses], taken, len(graphs) > 0]


@pytest.mark.parametrize("first", [True, False])
def test_models_are_compiled_before_or_after_the_wrap(ranks: RankPool, first: bool) -> None:
    torch.manual_seed(0)
    expected = F.cross_entropy(nn.Sequential(nn.Flatten(), nn.Linear(192, 5))(data()[0]), data()[1]).item()
    for losses, taken, has_graphs in ranks(2, compiled, first):
        assert losses == pytest.approx([expected] * 3)
        assert taken == 1
        assert has_graphs
