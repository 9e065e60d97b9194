"""How gradients are got, and what happens to them before the step; tags as of `losses`.

A `backward` is called with the run, after `zero_grad`, and returns a loss; a function for `gradients` comes behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812

from .losses import leaf_of, mse, slope_of
from .parts import add

if TYPE_CHECKING:
    from .play import Run

Tensor = Any  # torch's methods have no types


# --- backward -------------------------------------------------------------------------------------------------------


@add("backward", "sparse_too")
def plainly(run: Run) -> Tensor:
    """One backward."""
    loss = run.loss()
    loss.backward()
    return loss


@add("backward", same=(True, False), clean=(False, True))
def two_backwards(run: Run, same: bool, clean: bool) -> Tensor:
    """Two backwards through one graph."""
    out, target, _ = run.answer(run.batch())
    loss: Tensor = F.mse_loss(out, target)
    loss.backward(retain_graph=True)
    if clean:
        run.zero_grad()
    (loss if same else out.mean().square()).backward()
    return loss


@add("backward", "sparse_too", times=(2, 3), sums=(False, True))
def accumulated(run: Run, times: int, sums: bool) -> Tensor:
    """Several backwards before a step; or one of the sum of several losses."""
    losses: list[Tensor] = []
    for _ in range(times):
        losses.append(run.loss() / times)
        if not sums:
            losses[-1].backward()
            losses[-1] = losses[-1].detach()
    total: Tensor = torch.stack(losses).sum()
    if sums:
        total.backward()
    return total


@add("backward", "again", later=(False, True))
def forwards_before_backwards(run: Run, later: bool) -> Tensor:
    """Two graphs at once, in one order or the other."""
    losses = [run.loss(), run.loss()]
    for loss in reversed(losses) if later else losses:
        loss.backward()
    return losses[0].detach() + losses[1].detach()


@add("backward", some=(False, True))
def gradient_given(run: Run, some: bool) -> Tensor:
    """out.backward(gradient), of some rows perhaps."""
    out, target, _ = run.answer(run.batch())
    given = (out - target).detach()
    if some:
        given[1:] = 0
    out.backward(given)
    return given.square().mean()


@add("backward", rho=(0.05, 0.5))
def sharpness_aware(run: Run, rho: float) -> Tensor:
    """SAM: the gradient at the worst place nearby."""
    batch = run.batch()
    run.loss(batch).backward()
    found = [(param, param.grad) for param in run.trained() if param.grad is not None]
    norm = sum(grad.abs().square().sum().double() for _, grad in found) ** 0.5
    moves = [(param, (grad * (rho / (norm + 0.1))).to(param.dtype)) for param, grad in found]
    with torch.no_grad():
        for param, move in moves:
            param.add_(move)
    run.zero_grad()
    loss = run.loss(batch)
    loss.backward()
    with torch.no_grad():
        for param, move in moves:
            param.sub_(move)
    return loss


@add("backward", "two", detached=(True, False), freezes=(False, True), twice=(False, True))
def adversaries(run: Run, detached: bool, freezes: bool, twice: bool) -> Tensor:
    """A GAN: the second model tells rows from the first one's."""
    batch = run.batch()
    fake = run.forward(batch.x)
    judged = run.forward(fake.detach() if detached else fake, 1)
    loss: Tensor = F.softplus(judged).mean() + F.softplus(-run.forward(batch.target, 1)).mean()
    loss.backward(retain_graph=not detached)
    run.note("critic", loss)
    if detached:
        run.optimizers[1].step()
    if twice:
        fake = run.forward(batch.x)
    params = run.trained(1)
    for param in params if freezes and detached else ():
        param.requires_grad_(False)
    loss = F.softplus(-run.forward(fake, 1)).mean()
    run.optimizers[0].zero_grad()
    loss.backward()
    for param in params:
        param.requires_grad_(True)
    return loss


# --- the input's gradient -------------------------------------------------------------------------------------------


@add(
    "backward",
    own=(False, True),
    by=("anew", "data", "data in place", "no_grad"),
    clears=("none", "zeros", "nothing"),
    steps=(2, 3),
)
def attack(run: Run, own: bool, by: str, clears: str, steps: int) -> Tensor:
    """PGD: steps on the input, each on a new leaf or all on one that is moved in place; then training with it."""
    batch = run.batch()
    x = leaf_of(batch, own)
    start = x.detach().clone()
    for _ in range(steps):
        mse(run, batch, x).backward()
        run.note("gradient of the input", x.grad)
        if x.grad is None:
            break
        move = 0.2 * (x.grad * 20).tanh()
        if by == "anew":
            x = (x + move).detach().requires_grad_()
        elif by == "data":
            x.data = torch.max(torch.min(x + move, start + 0.3), start - 0.3).data
        elif by == "data in place":
            x.data.add_(move).clamp_(-2, 2)
        else:
            with torch.no_grad():
                x += move
        if clears == "none":
            x.grad = None
        elif clears == "zeros" and x.grad is not None:
            x.grad.zero_()
    run.zero_grad()
    loss = mse(run, batch, x.detach())
    loss.backward()
    return loss


@add("backward", kind=("SGD", "Adam"), what=("rows", "difference"), trains=(False, True))
def optimized_input(run: Run, kind: str, what: str, trains: bool) -> Tensor:
    """An optimizer over the input, or over what is added to it; the model is trained along, or after."""
    batch = run.batch()
    moved: Tensor = batch.x if what == "rows" else torch.zeros_like(batch.x)
    moved.requires_grad = True
    settings: dict[str, Any] = {"eps": 0.1} if kind == "Adam" else {"momentum": 0.5}
    optimizer = getattr(torch.optim, kind)([moved], lr=0.1, **settings)
    for _ in range(2):
        optimizer.zero_grad()
        loss = mse(run, batch, moved if what == "rows" else batch.x + moved)
        loss.backward()
        run.note("gradient of the input", moved.grad)
        optimizer.step()
        run.note("input", moved)
    if not trains:
        run.zero_grad()
        loss = mse(run, batch, (moved if what == "rows" else batch.x + moved).detach())
        loss.backward()
    return loss


@add("backward", "two", "grad", "slope", back=(True, False))
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


# --- autograd.grad --------------------------------------------------------------------------------------------------


def _set(params: Sequence[Any], grads: Sequence[Any]) -> None:
    for param, grad in zip(params, grads):
        param.grad = None if grad is None else grad.detach()


@add("backward", "grad", which=("some", "head", "input"))
def for_inputs(run: Run, which: str) -> Tensor:
    """backward(inputs=[...])."""
    batch = run.batch()
    x: Tensor = batch.x.clone().requires_grad_()
    loss = mse(run, batch, x)
    params = run.trained()
    inputs: Any = {"some": params[::2], "head": params[-1:], "input": [x, params[-1]]}[which]
    loss.backward(inputs=inputs)
    run.note("gradient of the input", x.grad)
    return loss


@add("backward", "grad", unused=(True, False), subset=("all", "some", "head"), twice=(False, True))
def by_grad(run: Run, unused: bool, subset: str, twice: bool) -> Tensor:
    """autograd.grad by parameters, whose .grad is set by hand."""
    loss = run.loss()
    params = {"all": run.trained(), "some": run.trained()[::2], "head": run.trained()[-2:]}[subset]
    if twice:
        first = torch.autograd.grad(loss, params, allow_unused=True, retain_graph=True)
        run.note("missing", sum(grad is None for grad in first))
    _set(params, torch.autograd.grad(loss, params, allow_unused=unused))
    return loss


@add("backward", "grad")
def grad_and_backward(run: Run) -> Tensor:
    """The gradient is looked at by autograd.grad, then comes by backward."""
    loss = run.loss()
    grads = torch.autograd.grad(loss, run.trained(), allow_unused=True, retain_graph=True)
    run.note("norm", sum(grad.abs().square().sum() for grad in grads if grad is not None))
    loss.backward()
    return loss


@add("backward", "grad", "real", by=("grad", "backward"))
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


def _norms(run: Run, losses: Sequence[Tensor], **how: Any) -> list[Tensor]:
    """The norms of losses' gradients by the last layer's weight."""
    last: Any = next(param for param in reversed(run.trained()) if param.dim() == 2)
    return [torch.autograd.grad(loss, last, **how)[0].norm() for loss in losses]


@add("backward", "grad")
def adaptive_weight(run: Run) -> Tensor:
    """The second loss is weighed by the gradients of the last layer (VQGAN)."""
    out, target, _ = run.answer(run.batch())
    first, second = F.mse_loss(out, target), (out - 0.3).abs().mean()
    norms = _norms(run, [first, second], retain_graph=True)
    weight = (norms[0] / (norms[1] + 0.01)).clamp(0, 5).detach()
    run.note("weight", weight)
    loss: Tensor = first + weight * second
    loss.backward()
    return loss


@add("backward", "second", "grad", "extras", "real")
def balanced(run: Run) -> Tensor:
    """GradNorm: the losses' weights are learned from the norms of their gradients."""
    out, target, labels = run.answer(run.batch())
    weights = run.extras["temperature"].exp() * torch.tensor([1.0, 0.5])
    losses = [weight * loss for weight, loss in zip(weights, (F.mse_loss(out, target), F.cross_entropy(out, labels)))]
    norms = _norms(run, losses, create_graph=True)
    difference = (norms[0] - norms[1].detach()).abs()
    (slope,) = torch.autograd.grad(difference, run.extras["temperature"], retain_graph=True)
    total = losses[0] + losses[1]
    total.backward()
    run.extras["temperature"].grad = slope.detach()
    return total.detach()


@add("backward", "second", "grad", "slope", again=(False, True))
def penalty_by_itself(run: Run, again: bool) -> Tensor:
    """WGAN-GP: a backward for the loss, one for the penalty."""
    batch = run.batch()
    loss = mse(run, batch)
    loss.backward()
    share = torch.rand(len(batch.x), 1)
    x = (share * batch.x + (1 - share) * batch.target).detach().requires_grad_()
    penalty: Tensor = (slope_of(run, x)[1].norm(2, 1) - 1).square().mean()
    run.note("penalty", penalty)
    penalty.backward(retain_graph=again)
    if again:
        (penalty * 0.5).backward()
    return loss


@add("backward", "second", "grad", "real", ways=("double", "backward"))
def hessian_times_vector(run: Run, ways: str) -> Tensor:
    """The Hessian times the gradient, as the gradient."""
    loss = run.loss()
    params = run.trained()
    grads = torch.autograd.grad(loss, params, create_graph=True, allow_unused=True)
    found = [grad for grad in grads if grad is not None and grad.requires_grad]
    if not found:
        loss.backward()
        return loss
    product: Any = sum((grad * grad.detach()).sum() for grad in found)
    if ways == "backward":
        product.backward()
    else:
        _set(params, torch.autograd.grad(product, params, allow_unused=True))
    return loss


@add("backward", "second")
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


@add("backward", "second", "grad", "slope", "two")
def intermediate(run: Run) -> Tensor:
    """The gradient by what is between two models becomes part of the loss of both."""
    middle = run.forward(run.batch().x)
    inner = F.softplus(run.forward(middle, 1)).mean()
    (slope,) = torch.autograd.grad(inner, middle, create_graph=True)
    loss = inner + (middle * slope.detach()).sum() + slope.square().sum()
    loss.backward()
    return loss


# --- between backward and step --------------------------------------------------------------------------------------


@add("gradients", norm=(2.0, 1.0, float("inf")), one=(True, False))
def clip_norm(run: Run, norm: float, one: bool) -> None:
    """Clip the norm, of all parameters or of each."""
    params = [param for param in run.nets[0].parameters() if param.numel()]
    for group in [params] if one else [[each] for each in params]:
        run.note("norm", torch.nn.utils.clip_grad_norm_(group, 0.3, norm_type=norm))


@add("gradients", "real")
def clip_value(run: Run) -> None:
    """Clip each number."""
    torch.nn.utils.clip_grad_value_(run.nets[0].parameters(), 0.05)


@add("gradients", data=(False, True))
def decay_by_hand(run: Run, data: bool) -> None:
    """Weight decay for all that has a gradient."""
    for param in run.with_gradients():
        if data:
            param.grad.data.add_(param.data, alpha=0.1)
        else:
            param.grad = param.grad + 0.1 * param.detach()


@add("gradients")
def noise_on_gradients(run: Run) -> None:
    """Random numbers for each gradient that is there: whether it is None decides on all that follows."""
    for param in run.with_gradients():
        param.grad += 0.01 * torch.randn_like(param, device="cpu").to(param.device)


@add("gradients")
def count_gradients(run: Run) -> None:
    """How many there are, how many are zeros."""
    grads = [param.grad for param in run.nets[0].parameters()]
    run.note("missing", sum(grad is None for grad in grads))
    run.note("zeros", sum(grad is not None and not grad.any() for grad in grads))


@add("gradients")
def smoothed(run: Run) -> None:
    """Gradients of the steps before are added (grokfast)."""
    kept = run.keep.setdefault("smoothed", {})
    for param in run.with_gradients():
        kept[param] = 0.5 * kept.get(param, torch.zeros_like(param)) + param.grad.detach()
        param.grad = param.grad + kept[param]
