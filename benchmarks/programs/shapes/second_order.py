"""Gradients of gradients: as losses, and as ways to get gradients.

Tags: `second` needs a model that can be differentiated twice; `slope` asks for the gradient by what it takes for used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812

from ..parts import SHAPES
from .backwards import _set

if TYPE_CHECKING:
    from ..play import Batch, Run

Tensor = Any  # torch's methods have no types


def _slope(run: Run, x: Tensor, curved: bool = False, which: int = 0) -> tuple[Tensor, Tensor]:
    out = run.forward(x, which)
    (slope,) = torch.autograd.grad((out.square() if curved else out).sum(), x, create_graph=True)
    return out, slope


@SHAPES.add("loss", "second", "grad", "slope", curved=(False, True), main=(True, False))
def gradient_penalty(run: Run, batch: Batch, curved: bool, main: bool) -> Tensor:
    """The slope of the model at its rows, in the loss."""
    x = batch.x.clone().requires_grad_()
    out, slope = _slope(run, x, curved)
    penalty = ((slope.square().sum(1) + 0.1).sqrt() - 1).square().mean()
    return penalty + F.mse_loss(out, batch.target[: len(out)]) if main else penalty


@SHAPES.add("loss", "second", "grad", "slope", "two", whole=(True, False))
def penalty_of_two(run: Run, batch: Batch, whole: bool) -> Tensor:
    """The slope of one model behind another one, or of the other alone."""
    x = batch.x.clone().requires_grad_()
    middle = run.forward(x)
    last = run.forward(middle, 1)
    at = x if whole else middle
    (slope,) = torch.autograd.grad(last.square().sum(), at, create_graph=True)
    return slope.square().sum(1).mean() + last.mean()


@SHAPES.add("loss", "second", "grad", inner=("mse", "cross_entropy"))
def penalty_on_parameters(run: Run, batch: Batch, inner: str) -> Tensor:
    """The norm of the parameters' gradients, in the loss."""
    out, target, labels = run.answer(batch)
    loss = F.mse_loss(out, target) if inner == "mse" else F.cross_entropy(out, labels)
    grads = torch.autograd.grad(loss, run.trained(), create_graph=True, allow_unused=True)
    return loss + sum(grad.abs().square().sum() for grad in grads if grad is not None)


@SHAPES.add("loss", "second", "grad", "extras", learned=(False, True), order=(2, 1), times=(1, 2))
def inner_step(run: Run, batch: Batch, learned: bool, order: int, times: int) -> Tensor:
    """MAML: steps on weights that are the model's for a moment."""
    weights: dict[str, Any] = {name: param for name, param in run.nets[0].named_parameters() if param.requires_grad}
    rate: Any = run.extras["temperature"] * 0.1 if learned else 0.1
    for _ in range(times):
        out = run.forward(batch.x, weights=weights)
        loss = F.mse_loss(out, batch.target[: len(out)])
        grads = torch.autograd.grad(loss, list(weights.values()), create_graph=order == 2, allow_unused=True)
        pairs = zip(weights.items(), grads)
        weights = {name: weight if grad is None else weight - rate * grad for (name, weight), grad in pairs}
    query = run.batch()
    out = run.forward(query.x, weights=weights)
    return F.mse_loss(out, query.target[: len(out)])


@SHAPES.add("loss", "second", "grad", "slope")
def third_order(run: Run, batch: Batch) -> Tensor:
    """The slope of the slope."""
    x = batch.x.clone().requires_grad_()
    out, slope = _slope(run, x, curved=True)
    (again,) = torch.autograd.grad(slope.square().sum(), x, create_graph=True)
    return out.mean().square() + 0.01 * again.square().mean()


@SHAPES.add("loss", "second", "grad", what=("jacobian", "hvp", "vjp", "jvp"), graph=(True, False))
def by_functional(run: Run, batch: Batch, what: str, graph: bool) -> Tensor:
    """torch.autograd.functional."""

    def total(x: Tensor) -> Tensor:
        out: Tensor = run.forward(x)
        return out.square().sum() if what == "hvp" else out.square().sum(0)

    x = batch.x.clone()
    functional = torch.autograd.functional
    if what == "jacobian":
        found: Any = functional.jacobian(total, x, create_graph=graph)  # type: ignore[no-untyped-call]
    else:
        given = torch.ones(x.size(1)) if what == "vjp" else torch.ones_like(x)
        found = getattr(functional, what)(total, x, given, create_graph=graph)[1]
    out, target, _ = run.answer(batch)
    run.look("found", found)
    return F.mse_loss(out, target) + (0.01 * found.square().mean() if graph else 0)


@SHAPES.add("loss", "second", "grad")
def func_of_the_module(run: Run, batch: Batch) -> Tensor:
    """torch.func.grad over functional_call of the wrapped module's last layer."""
    net: Any = run.nets[0]
    head = (net.module if hasattr(net, "module") else net.features.module).head
    weights = {name: param.detach() for name, param in head.named_parameters()}

    def loss(weights: Any, x: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(head, weights, (x,)).square().mean()
        return found

    with torch.no_grad():
        at = run.forward(batch.x)
    grads = torch.func.grad(loss)(weights, at.clone())
    run.note("slopes", grads["weight"])
    out, target, _ = run.answer(batch)
    return F.mse_loss(out, target) + (head.weight * grads["weight"]).sum()


@SHAPES.add("backward", "second", "grad", "slope", again=(False, True))
def penalty_by_itself(run: Run, again: bool) -> Tensor:
    """WGAN-GP: a backward for the loss, one for the penalty."""
    batch = run.batch()
    out, target, _ = run.answer(batch)
    loss: Tensor = F.mse_loss(out, target)
    loss.backward()
    share = torch.rand(len(batch.x), 1)
    x = (share * batch.x + (1 - share) * batch.target).detach().requires_grad_()
    _, slope = _slope(run, x)
    penalty: Tensor = (slope.norm(2, 1) - 1).square().mean()
    run.note("penalty", penalty)
    penalty.backward(retain_graph=again)
    if again:
        (penalty * 0.5).backward()
    return loss


@SHAPES.add("backward", "second", "grad", "real", ways=("double", "backward"))
def hessian_times_vector(run: Run, ways: str) -> Tensor:
    """The Hessian times the gradient, as the gradient."""
    loss = run.loss()
    params = run.trained()
    grads = torch.autograd.grad(loss, params, create_graph=True, allow_unused=True)
    found = [(param, grad) for param, grad in zip(params, grads) if grad is not None and grad.requires_grad]
    if not found:
        loss.backward()
        return loss
    product: Any = sum((grad * grad.detach()).sum() for _, grad in found)
    if ways == "backward":
        product.backward()
    else:
        _set(params, torch.autograd.grad(product, params, allow_unused=True))
    return loss


@SHAPES.add("backward", "second")
def backward_with_graph(run: Run) -> Tensor:
    """backward(create_graph=True), and a second one through its gradients."""
    loss = run.loss()
    loss.backward(create_graph=True)
    grads = [param.grad for param in run.trained() if param.grad is not None]
    run.zero_grad()
    again = sum(grad.abs().square().sum() for grad in grads if grad.requires_grad)
    for param in run.trained():
        param.grad = None
    (loss + again).backward()
    return loss


@SHAPES.add("backward", "second", "grad", "extras", "real")
def balanced(run: Run) -> Tensor:
    """GradNorm: the losses' weights are learned from the norms of their gradients."""
    out, target, labels = run.answer(run.batch())
    losses = [F.mse_loss(out, target), F.cross_entropy(out, labels)]
    weights = run.extras["temperature"].exp() * torch.tensor([1.0, 0.5])
    last = next(param for param in reversed(run.trained()) if param.dim() == 2)
    norms = [
        torch.autograd.grad(weight * loss, last, create_graph=True)[0].norm() for weight, loss in zip(weights, losses)
    ]
    total = sum(weight.detach() * loss for weight, loss in zip(weights, losses))
    difference = (norms[0] - norms[1].detach()).abs()
    (slope,) = torch.autograd.grad(difference, run.extras["temperature"], retain_graph=True)
    total.backward()
    run.extras["temperature"].grad = slope.detach()
    return total.detach()


@SHAPES.add("backward", "second", "grad", "slope", "two")
def intermediate(run: Run) -> Tensor:
    """The gradient by what is between two models becomes part of the loss of both."""
    batch = run.batch()
    middle = run.forward(batch.x)
    last = run.forward(middle, 1)
    inner = F.softplus(last).mean()
    (slope,) = torch.autograd.grad(inner, middle, create_graph=True)
    loss = inner + (middle * slope.detach()).sum() + slope.square().sum()
    loss.backward()
    return loss
