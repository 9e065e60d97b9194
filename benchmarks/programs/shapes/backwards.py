"""How gradients are got, to first order. Each is called with the run, after `zero_grad`, and returns a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812

from ..parts import SHAPES

if TYPE_CHECKING:
    from ..play import Run

Tensor = Any  # torch's methods have no types


@SHAPES.add("backward", "sparse_too")
def plainly(run: Run) -> Tensor:
    """One backward."""
    loss = run.loss()
    loss.backward()
    return loss


@SHAPES.add("backward", same=(True, False), clean=(False, True))
def two_backwards(run: Run, same: bool, clean: bool) -> Tensor:
    """Two backwards through one graph."""
    batch = run.batch()
    out, target, _ = run.answer(batch)
    loss: Tensor = F.mse_loss(out, target)
    loss.backward(retain_graph=True)
    if clean:
        run.zero_grad()
    (loss if same else out.mean().square()).backward()
    return loss


@SHAPES.add("backward", "sparse_too", times=(2, 3), sums=(False, True))
def accumulated(run: Run, times: int, sums: bool) -> Tensor:
    """Several backwards before a step; or one of the sum of several losses."""
    losses: list[Tensor] = []
    for _ in range(times):
        losses.append(run.loss() / times)
        if not sums:
            losses[-1].backward()
    total: Tensor = torch.stack([loss.detach() if not sums else loss for loss in losses]).sum()
    if sums:
        total.backward()
    return total


@SHAPES.add("backward", later=(False, True))
def forwards_before_backwards(run: Run, later: bool) -> Tensor:
    """Two graphs at once, in one order or the other."""
    losses = [run.loss(), run.loss()]
    for loss in reversed(losses) if later else losses:
        loss.backward()
    return losses[0].detach() + losses[1].detach()


@SHAPES.add("backward", some=(False, True))
def gradient_given(run: Run, some: bool) -> Tensor:
    """out.backward(gradient), of some rows perhaps."""
    batch = run.batch()
    out, target, _ = run.answer(batch)
    given = (out - target).detach()
    if some:
        given[1:] = 0
    out.backward(given)
    return given.square().mean()


@SHAPES.add("backward", "grad", which=("some", "head", "input"))
def for_inputs(run: Run, which: str) -> Tensor:
    """backward(inputs=[...])."""
    batch = run.batch()
    x: Tensor = batch.x.clone().requires_grad_()
    out, target, _ = run.answer(batch, x)
    loss: Tensor = F.mse_loss(out, target)
    params = run.trained()
    inputs: Any = {"some": params[::2], "head": params[-1:], "input": [x, params[-1]]}[which]
    loss.backward(inputs=inputs)
    run.note("gradient of the input", x.grad)
    return loss


def _set(params: Sequence[Any], grads: Sequence[Any]) -> None:
    for param, grad in zip(params, grads):
        param.grad = None if grad is None else grad.detach()


@SHAPES.add("backward", "grad", unused=(True, False), subset=("all", "some", "head"), twice=(False, True))
def by_grad(run: Run, unused: bool, subset: str, twice: bool) -> Tensor:
    """autograd.grad by parameters, whose .grad is set by hand."""
    loss = run.loss()
    params = {"all": run.trained(), "some": run.trained()[::2], "head": run.trained()[-2:]}[subset]
    if twice:
        first = torch.autograd.grad(loss, params, allow_unused=True, retain_graph=True)
        run.note("missing", sum(grad is None for grad in first))
    _set(params, torch.autograd.grad(loss, params, allow_unused=unused))
    return loss


@SHAPES.add("backward", "grad")
def grad_and_backward(run: Run) -> Tensor:
    """The gradient is looked at by autograd.grad, then comes by backward."""
    loss = run.loss()
    grads = torch.autograd.grad(loss, run.trained(), allow_unused=True, retain_graph=True)
    run.note("norm", sum(grad.abs().square().sum() for grad in grads if grad is not None))
    loss.backward()
    return loss


@SHAPES.add("backward", "grad", "real", by=("grad", "backward"))
def projected(run: Run, by: str) -> Tensor:
    """Two losses whose gradients are kept from working against each other (PCGrad)."""
    out, target, labels = run.answer(run.batch())
    losses: list[Tensor] = [F.mse_loss(out, target), F.cross_entropy(out, labels)]
    params = run.trained()
    found: list[list[Tensor]] = []
    for loss in losses:
        if by == "grad":
            grads: Sequence[Any] = torch.autograd.grad(loss, params, retain_graph=True, allow_unused=True)
        else:
            run.zero_grad()
            loss.backward(retain_graph=True)
            grads = [None if param.grad is None else param.grad.clone() for param in params]
        found.append([torch.zeros_like(param) if grad is None else grad for param, grad in zip(params, grads)])
    flat = [torch.cat([grad.reshape(-1).double() for grad in grads]) for grads in found]
    share = torch.dot(*flat) / (flat[1].square().sum() + 0.01)
    run.note("share", share)
    _set(params, [one + 0.5 * other - share.to(one.dtype) * other for one, other in zip(*found)])
    return losses[0]


@SHAPES.add("backward", "grad")
def adaptive_weight(run: Run) -> Tensor:
    """The second loss is weighed by the gradients of the last layer (VQGAN)."""
    out, target, _ = run.answer(run.batch())
    first, second = F.mse_loss(out, target), (out - 0.3).abs().mean()
    last = next(param for param in reversed(run.trained()) if param.dim() == 2)
    norms = [torch.autograd.grad(loss, last, retain_graph=True)[0].norm() for loss in (first, second)]
    weight = (norms[0] / (norms[1] + 0.01)).clamp(0, 5).detach()
    run.note("weight", weight)
    loss: Tensor = first + weight * second
    loss.backward()
    return loss


@SHAPES.add("backward", rho=(0.05, 0.5))
def sharpness_aware(run: Run, rho: float) -> Tensor:
    """SAM: the gradient at the worst place nearby."""
    batch = run.batch()
    run.loss(batch).backward()
    params = [param for param in run.trained() if param.grad is not None]
    norm = sum(param.grad.abs().square().sum().double() for param in params if param.grad is not None) ** 0.5
    moves = [param.grad * (rho / (norm + 0.1)) for param in params if param.grad is not None]
    with torch.no_grad():
        for param, move in zip(params, moves):
            param.add_(move.to(param.dtype))
    run.zero_grad()
    loss = run.loss(batch)
    loss.backward()
    with torch.no_grad():
        for param, move in zip(params, moves):
            param.sub_(move.to(param.dtype))
    return loss


@SHAPES.add("backward", "two", detached=(True, False), freezes=(False, True), twice=(False, True))
def adversaries(run: Run, detached: bool, freezes: bool, twice: bool) -> Tensor:
    """A GAN: the second model tells rows from the first one's."""
    batch = run.batch()
    critic, step = run.nets[1], run.optimizers[1]
    fake = run.forward(batch.x)
    judged = run.forward(fake.detach() if detached else fake, 1)
    loss: Tensor = F.softplus(judged).mean() + F.softplus(-run.forward(batch.target, 1)).mean()
    loss.backward(retain_graph=not detached)
    run.note("critic", loss)
    if detached:
        step.step()
    if twice:
        fake = run.forward(batch.x)
    params = [param for param in critic.parameters() if param.requires_grad]
    for param in params if freezes and detached else ():
        param.requires_grad_(False)
    loss = F.softplus(-run.forward(fake, 1)).mean()
    run.optimizers[0].zero_grad()
    loss.backward()
    for param in params:
        param.requires_grad_(True)
    return loss


@SHAPES.add("backward")
def steps_on_the_input(run: Run) -> Tensor:
    """PGD: some steps on the batch by autograd.grad's simplest use, then training with what came of it."""
    batch = run.batch()
    x: Tensor = batch.x.clone().detach()
    for _ in range(2):
        x = x.detach().requires_grad_()
        out, target, _ = run.answer(batch, x)
        loss: Tensor = F.mse_loss(out, target)
        loss.backward()
        run.note("gradient of the input", x.grad)
        x = x if x.grad is None else x + 0.2 * (x.grad * 20).tanh()
    run.zero_grad()
    out, target, _ = run.answer(batch, x.detach())
    loss = F.mse_loss(out, target)
    loss.backward()
    return loss


@SHAPES.add("backward", "two", "grad", "slope", back=(True, False))
def through_the_middle(run: Run, back: bool) -> Tensor:
    """The gradient of what is between two models is taken by itself, and given to the first one."""
    batch = run.batch()
    middle = run.forward(batch.x)
    cut: Tensor = middle.detach().requires_grad_()
    last = run.forward(cut, 1)
    loss: Tensor = F.mse_loss(last, batch.target[: len(last)])
    if back:
        loss.backward()
        middle.backward(cut.grad)
    else:
        (slope,) = torch.autograd.grad(loss, cut, retain_graph=True)
        run.note("slope", slope)
        loss.backward()
        (middle * slope.tanh()).sum().backward()
    return loss
