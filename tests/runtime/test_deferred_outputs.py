"""Large outputs, which stay on their ranks: losses, metrics, gradients asked for in every way; what gathers."""

from __future__ import annotations

from typing import Any, Callable
from unittest import mock

import dp2ddp_runtime as ddp
import pytest
import torch
from deferring import ROWS, all_large, deferred, is_rows, needs_swap
from dp2ddp_runtime import large
from dp2ddp_runtime.gradients import Layout
from dp2ddp_runtime.rows import whole
from dp2ddp_runtime.world import world
from rank_pool import RankError, RankPool, on_ranks
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

Case = Callable[..., torch.Tensor]
WEIGHT = torch.arange(1.0, 6).double()
SIDE = 24  # of pictures: a rank's outputs are too large to travel along with something else


class _Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x / 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad / 2


def _scripted(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + x.size(0)


def _subtracted(net: Any, x: Any, out: Any, t: Any) -> torch.Tensor:
    z = x[:, :1].clone()
    z -= out[:, :1]
    return (z**2).mean()


def _set_into(net: Any, x: Any, out: Any, t: Any) -> torch.Tensor:
    z = torch.zeros(len(out), 5, SIDE, SIDE, dtype=torch.double)
    z[:, :, 2:5] = out[:, :, 2:5]
    return (z**2).mean()


def _set_into_a_batch(net: Any, x: Any, out: Any, t: Any) -> torch.Tensor:
    x = x * 1 if hasattr(torch.utils, "swap_tensors") else x.clone()
    view = x.view(len(x), -1)
    x[:, :, 2:5] = out[:, :3, 2:5]
    return view.mean() + (_Halved.apply(x) ** 2).sum()


def _written_into(net: Any, x: Any, out: Any, t: Any) -> torch.Tensor:
    view = out.view(len(out), -1)
    view -= x.reshape(len(x), -1)[:, :1]
    out[:, 0] = 0
    out.clamp_(min=-0.1)
    return F.cross_entropy(out, t % 5) + F.mse_loss(view, torch.ones_like(view))


def _looks_first(net: Any, x: Any, out: Any, t: Any) -> torch.Tensor:
    with torch.no_grad():
        out[0].sum().item()
    return F.cross_entropy(out, t, ignore_index=255)


def _hooked(net: Any, x: Any, out: Any, t: Any) -> torch.Tensor:
    out.register_hook(lambda grad: grad * 2)
    return F.mse_loss(out, torch.zeros_like(out))


def _retained(net: Any, x: Any, out: Any, t: Any) -> torch.Tensor:
    out.retain_grad()
    F.cross_entropy(out, t % 5).backward(retain_graph=True)
    return (out * out.grad.detach()).sum()


def _asked(net: Any, x: Any, out: Any, t: Any) -> torch.Tensor:
    (grad,) = torch.autograd.grad((out**2).sum(), out, retain_graph=True)
    return (out * grad).sum()


def _given(net: Any, x: Any, out: Any, t: Any) -> torch.Tensor:
    out.backward(torch.ones_like(out), retain_graph=True)
    return (out**2).mean()


def _penalty(net: Any, x: Any, out: Any, t: Any) -> torch.Tensor:
    loss = F.cross_entropy(out, t % 5) ** 2 + F.mse_loss(out, torch.ones_like(out))
    grads = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
    return torch.stack([(grad**2).sum() for grad in grads]).sum() + loss


#: What stays on the ranks: net, batch, output, target -> a loss.
APART: dict[str, Case] = {
    "ignored": lambda net, x, out, t: F.cross_entropy(out, t, ignore_index=255),
    "weighted and smoothed": lambda net, x, out, t: F.cross_entropy(
        out, t, WEIGHT, ignore_index=255, label_smoothing=0.1
    ),
    "each": lambda net, x, out, t: F.cross_entropy(out, t, ignore_index=255, reduction="none").mean(),
    "sum": lambda net, x, out, t: F.cross_entropy(out, t, ignore_index=255, reduction="sum"),
    "probabilities": lambda net, x, out, t: F.cross_entropy(out, F.softmax(out.detach() * 2, 1)),
    "module": lambda net, x, out, t: nn.CrossEntropyLoss(ignore_index=255)(out, t),
    "twice": lambda net, x, out, t: F.cross_entropy(out, t % 5) + 2 * F.cross_entropy(out, t % 5, reduction="sum"),
    "nll": lambda net, x, out, t: F.nll_loss(F.log_softmax(out, 1), t, WEIGHT, ignore_index=255),
    "mse": lambda net, x, out, t: F.mse_loss(out[:, 0], (t % 5).double()),
    "mse of a batch": lambda net, x, out, t: F.mse_loss(x, out[:, :3]),
    "l1": lambda net, x, out, t: nn.L1Loss()(out[:, :3], x),
    "smooth l1": lambda net, x, out, t: F.smooth_l1_loss(out[:, :3], x, beta=0.3),
    "huber": lambda net, x, out, t: F.huber_loss(out[:, :3], x, reduction="sum"),
    "soft margin": lambda net, x, out, t: F.soft_margin_loss(out[:, 0], (t % 2 * 2 - 1).double()),
    "bce of sigmoid": lambda net, x, out, t: nn.BCELoss()(torch.sigmoid(out[:, 1]), (t == 1).double()),
    "bce with logits": lambda net, x, out, t: F.binary_cross_entropy_with_logits(
        out, torch.ones_like(out) * 0.3, pos_weight=WEIGHT.view(5, 1, 1)
    ),
    "kl": lambda net, x, out, t: F.kl_div(F.log_softmax(out, 1), F.softmax(out.detach() * 2, 1), reduction="batchmean"),
    "each pixel": lambda net, x, out, t: F.cross_entropy(
        out.permute(0, 2, 3, 1).reshape(-1, 5), t.view(-1), WEIGHT, ignore_index=255
    ),
    "flat": lambda net, x, out, t: F.mse_loss(out[:, 0].reshape(-1), (t % 5).view(-1).double()) + out.view(-1).mean(),
    "interpolated": lambda net, x, out, t: F.cross_entropy(
        F.interpolate(out, size=(16, 16), mode="bilinear"), torch.zeros(len(out), 16, 16, dtype=torch.long)
    ),
    "sums": lambda net, x, out, t: out.sum() + out.mean((2, 3)).sum() + out.sum(1).mean(),
    "largest": lambda net, x, out, t: out.max(1)[0].mean() + out.amax((2, 3)).sum(),
    "penalty": _penalty,
    "compiled": lambda net, x, out, t: torch.compile(lambda a, b: F.cross_entropy(a, b), backend="eager")(out, t % 5),
}
#: What gathers, with the gradient of all.
GATHERED: dict[str, Case] = {
    "subtracted from a batch": _subtracted,
    "set into a tensor": _set_into,
    "set into a batch": _set_into_a_batch,
    "written into": _written_into,
    "multiplied": lambda net, x, out, t: F.cross_entropy(out.mul_(2), t, ignore_index=255),
    "after a look without gradients": _looks_first,
    "a hook": _hooked,
    "retained": _retained,
    "asked for": _asked,
    "given": _given,
    "legacy": lambda net, x, out, t: F.mse_loss(out[:, 0], (t % 5).double(), size_average=False) + out.mean(0).sum(),
    "weights of rows": lambda net, x, out, t: F.binary_cross_entropy_with_logits(
        out, torch.ones_like(out) * 0.3, weight=torch.arange(float(len(out))).view(-1, 1, 1, 1).double()
    ),
    "broadcast": lambda net, x, out, t: F.mse_loss(out[:, :1], (t % 5).double()) + out.max(),
    "masked": lambda net, x, out, t: ((out * (t == 1).unsqueeze(1)) ** 2).sum() / (t == 1).sum(),
    "joined": lambda net, x, out, t: torch.cat([out, out * 2]).square().mean() + torch.cat([out, out], 1).mean(),
    "unknown": lambda net, x, out, t: torch.cdist(out.flatten(1), out.flatten(1)).mean(),
    "over rows": lambda net, x, out, t: (out.softmax(0) ** 2).mean(),
    "function": lambda net, x, out, t: _Halved.apply(out).square().mean(),
    "script": lambda net, x, out, t: torch.jit.script(_scripted)(out).mean(),
    "checkpoint": lambda net, x, out, t: checkpoint(lambda a: (a**3).mean(), out, use_reentrant=False),
    "reentrant": lambda net, x, out, t: checkpoint(lambda a: (a**3).mean(), out, use_reentrant=True),
}
LATE: dict[str, Callable[[Any], Any]] = {
    "retained": lambda out: out.retain_grad(),
    "a hook": lambda out: out.register_hook(print),
    "asked for": lambda out: torch.autograd.grad(out.mean(), out, allow_unused=True),
}


def model_of(net: nn.Module, x: Any) -> Any:
    """What a wrapped model does with a large output."""
    if world.size == 1:
        return net(x)
    with mock.patch.object(large, "LARGE", 0):
        return ddp.wrap_model(net)(x)


def losses(rows: int, swaps: bool) -> dict[str, Any]:
    """Each case's loss, gradients, number of hits, and whether the output stayed where it is."""
    if not swaps:  # torch before 2.3
        vars(torch.utils).pop("swap_tensors", None)
    generator = torch.Generator().manual_seed(3)
    all_x, all_t = (
        torch.rand(rows, 3, SIDE, SIDE, generator=generator).double(),
        torch.randint(5, (rows, SIDE, SIDE), generator=generator),
    )
    all_t[0], all_t[1, :2] = 3, 255
    found = {}
    for name, case in {**APART, **{f"{name}, gathered": case for name, case in GATHERED.items()}}.items():
        torch.manual_seed(0)
        net = nn.Conv2d(3, 5, 3, padding=1).double()
        with all_large():
            x, t = deferred(all_x), deferred(all_t)
            out = model_of(net, x)
            loss = whole(case(net, x, out, t))
            loss.backward()
            hits = (out.argmax(1) == t).sum().item()
        found[name] = [loss.item(), hits, [each.grad.flatten().tolist() for each in net.parameters()], is_rows(out)]
    return found


@pytest.mark.parametrize(("n", "rows", "swaps"), [(2, ROWS, True), (3, 4, True), (2, ROWS, False)])
def test_losses_of_outputs_are_those_of_the_whole(ranks: RankPool, n: int, rows: int, swaps: bool) -> None:
    """Of 4 rows the last one of 3 ranks has none."""
    expected = losses(rows, True)
    for found in ranks(n, losses, rows, swaps):
        for name, (loss, hits, grads, stays) in found.items():
            assert loss == pytest.approx(expected[name][0], rel=1e-12), name
            assert hits == expected[name][1], name
            for one, other in zip(grads, expected[name][2]):
                assert one == pytest.approx(other, rel=1e-10, abs=1e-13), name
            assert stays is (name in APART), name


@pytest.mark.parametrize("late", LATE)
def test_gradients_of_an_output_asked_for_after_the_loss_are_an_error(ranks: RankPool, late: str) -> None:
    with pytest.raises(RankError, match=r"test_deferred_outputs.py:\d+ asks for the gradient of an output from which"):
        ranks(2, asks_late, late)


def asks_late(late: str) -> None:
    with all_large():
        out = model_of(nn.Conv2d(3, 5, 1), deferred(torch.rand(ROWS, 3, SIDE, SIDE)))
        F.mse_loss(out, torch.zeros_like(out))
        LATE[late](out)


@on_ranks(2, each=[True, True, True])
def test_means_of_narrow_outputs_do_not_overflow() -> list[bool]:
    """The sum of an output in half precision is beyond what that can hold; its mean isn't."""
    with all_large():
        sizes = (400,) * world.size
        out = large.output(torch.full((400, 400), 100.0).half(), Layout(sizes, 0), [])
        means = [out.mean(), F.mse_loss(out, out * 0), F.l1_loss(out, (out * 0), reduction="mean")]
        assert all(mean.dtype == torch.float16 and mean.isfinite() for mean in means)
        whole = torch.full((400 * world.size, 400), 100.0).half()
        own = [whole.mean(), F.mse_loss(whole, whole * 0), F.l1_loss(whole, whole * 0)]
        return [bool(mean == each) for mean, each in zip(means, own)]


@on_ranks(2, each=[True] * 3)
def test_in_mixed_precision() -> list[bool]:
    """Under autocast an output is half as wide; its loss is in float32, as of the whole."""
    torch.manual_seed(0)
    net, x, t = nn.Conv2d(3, 5, 1), torch.rand(ROWS, 3, SIDE, SIDE), torch.ones(ROWS, SIDE, SIDE).long()
    with all_large(), torch.autocast("cpu", torch.bfloat16):
        out = model_of(net, deferred(x))
        loss = F.cross_entropy(out, deferred(t))
        expected = F.cross_entropy(net(x), t)
        scaled = loss * 1024
    scaled.backward()
    return [out.dtype == torch.bfloat16, loss.dtype == expected.dtype, torch.allclose(loss, expected, rtol=1e-3)]


@needs_swap
@on_ranks(2, each=True)
def test_a_variable_is_given_its_gradient_by_the_model() -> bool:
    """As adversarial training makes one of a batch."""
    torch.manual_seed(0)
    net, x = nn.Conv2d(3, 3, 1), torch.rand(9, 3, 80, 80, generator=torch.Generator().manual_seed(4))
    model, grads = ddp.wrap_model(net), []
    for leaf in (
        torch.autograd.Variable(deferred(x), requires_grad=True),
        deferred(x).requires_grad_(),
        x.requires_grad_(),
    ):
        given = model(leaf) if leaf is not x else net(x)
        given.square().mean().backward()
        grads.append(leaf.grad)
    return all(torch.allclose(grad, grads[-1]) for grad in grads)
