"""Losses. Each is called with the run and a batch.

Tags: `level` makes gradients vanish but for rounding; `grad` calls autograd.grad; `slope` asks it for what it takes for
used; `second` needs a model that can be differentiated twice; `two` needs a second model; `extras` trains tensors
outside of models; `copies` copies the model; `real` orders numbers; `sparse_too` may be used with sparse gradients.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from .blocks import WIDTH
from .parts import add

if TYPE_CHECKING:
    from .play import Batch, Run

Tensor = Any  # torch's methods have no types


def mse(run: Run, batch: Batch, x: Tensor = None) -> Tensor:
    """The plainest loss, of the batch's rows or of others."""
    out, target, _ = run.answer(batch, x)
    return F.mse_loss(out, target)


# --- formulas of an output ------------------------------------------------------------------------------------------


@add("loss", "sparse_too", how=("mean", "sum", "rows", "by hand"), kind=("mse", "l1", "smooth_l1", "huber"))
def distance(run: Run, batch: Batch, how: str, kind: str) -> Tensor:
    """A distance from the targets, summed up in some way."""
    out, target, _ = run.answer(batch)
    loss = getattr(F, f"{kind}_loss")
    if how == "rows":
        return loss(out, target, reduction="none").mean(1).sum() / len(out)
    if how == "by hand":
        return (out - target).pow(2).sum(1).sqrt().mean()
    return loss(out, target, reduction=how) * (1.0 if how == "mean" else 0.1)


@add("loss", "sparse_too", weights=(False, True), ignore=(False, True), smoothing=(0.0, 0.1), how=("mean", "sum"))
def cross_entropy(run: Run, batch: Batch, weights: bool, ignore: bool, smoothing: float, how: str) -> Tensor:
    """The loss of classes, with its options."""
    out, _, labels = run.answer(batch)
    weight = torch.tensor([0.5, 1.0, 2.0, 1.5]) if weights else None
    left = 1 if ignore and float((labels != 1).sum()) > 0 else -100
    return F.cross_entropy(out, labels, weight, ignore_index=left, label_smoothing=smoothing, reduction=how)


_ROWS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "log_softmax": lambda out, y, n: F.kl_div(F.log_softmax(out, dim=1), y.softmax(1), reduction="batchmean"),
    "nll": lambda out, y, n: F.nll_loss(F.log_softmax(out, dim=1), n),
    "product": lambda out, y, n: ((out - y).square().mean(1) * (n > 0)).sum() / ((n > 0).sum() + 1),
    "index": lambda out, y, n: (out - y).square()[n > 0].sum() / len(out),
    "where": lambda out, y, n: torch.where(y > 0, (out - y).square(), out * 0.1).mean(),
    "fill": lambda out, y, n: (out - y).square().masked_fill((n > 0)[:, None], 0.0).mean(),
}


@add("loss", "sparse_too", of=tuple(_ROWS))
def of_rows(run: Run, batch: Batch, of: str) -> Tensor:
    """Of logarithms, and how many were right; of some rows or numbers alone."""
    out, target, labels = run.answer(batch)
    if of in ("log_softmax", "nll"):
        run.note("right", (out.argmax(1) == labels).sum().item())
    return _ROWS[of](out, target, labels)


def _contrastive(out: Tensor, target: Tensor, labels: Tensor) -> Tensor:
    """All rows against all others."""
    likeness, places = (out + 0.1) @ target.t() / 2, torch.arange(len(out))
    return (F.cross_entropy(likeness, places) + F.cross_entropy(likeness.t(), places)) / 2


_PARTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "binary": lambda out, y, n: F.binary_cross_entropy(torch.sigmoid(out), (y > 0).to(out.dtype)),
    "logits": lambda out, y, n: F.binary_cross_entropy_with_logits(out, (y > 0).to(out.dtype)),
    "positive": lambda out, y, n: F.binary_cross_entropy_with_logits(
        out, (y > 0).to(out.dtype), pos_weight=torch.ones(WIDTH) * 2
    ),
    "contrastive": _contrastive,
    "topk": lambda out, y, n: (out - y).square().mean(1).topk(max(1, len(out) // 2)).values.mean(),
    "sort": lambda out, y, n: (out - y).square().mean(1).sort(descending=True)[0][0],
    "max": lambda out, y, n: (out - y).square().mean(1).max(),
    # of these some replicas have no gradient
    "first": lambda out, y, n: out[:1].square().mean(),
    "last": lambda out, y, n: out[-2:].square().mean(),
    "column": lambda out, y, n: out[:, 1].square().mean(),
    "strided": lambda out, y, n: out[::2, 1:].square().mean(),
    "gathered": lambda out, y, n: out.gather(1, n[:, None]).square().mean(),
}


@add("loss", of=tuple(_PARTS))
def of_parts(run: Run, batch: Batch, of: str) -> Tensor:
    """Of yes and no; of rows beside others; of the worst rows; of a part of the output."""
    return _PARTS[of](*run.answer(batch))


@add("loss", "level", of=("std", "var", "median", "quantile"))
def spread(run: Run, batch: Batch, of: str) -> Tensor:
    """Statistics over all rows."""
    out, target, _ = run.answer(batch)
    if of == "std":
        return out.std() + out.mean().square()
    if of == "var":
        return out.var(0, correction=0).add(0.1).sum()
    apart = out - target
    return (apart.quantile(0.4, dim=0) if of == "quantile" else apart.median(0)[0]).square().sum()


@add("loss", "sparse_too")
def as_it_comes(run: Run, batch: Batch) -> Tensor:
    """What the script does next depends on a number."""
    out, target, _ = run.answer(batch)
    loss = F.mse_loss(out, target)
    return loss * 0.5 + out.abs().mean() if loss.item() > 1.0 else loss


# --- forwards -------------------------------------------------------------------------------------------------------


@add("loss", "sparse_too", other=("flipped", "same", "next"))
def two_forwards(run: Run, batch: Batch, other: str) -> Tensor:
    """Two forwards, one backward."""
    out, *_ = run.answer(batch)
    again = run.forward(run.batch().x if other == "next" else batch.x.flip(0) if other == "flipped" else batch.x)
    size = min(len(out), len(again))
    return F.mse_loss(out[:size], again[:size] * 0.5 + 0.1) + out.mean().square()


@add("loss", "sparse_too", how=("mean", "sum", "first"))
def in_the_model(run: Run, batch: Batch, how: str) -> Tensor:
    """The model returns its loss: a vector, an entry for each replica."""
    uneven = run.models[0]["call"] == "uneven"
    losses = run.answer(batch)[0] if uneven else run.forward(batch.x, target=batch.target)
    run.look("losses", losses)
    return losses.reshape(-1)[0] if how == "first" else getattr(losses, how)()


@add("loss", cut=(False, True))
def mixup(run: Run, batch: Batch, cut: bool) -> Tensor:
    """Rows mixed with others."""
    order = torch.randperm(len(batch.x))
    share = 0.3 + 0.4 * torch.rand(()).item()
    x = share * batch.x + (1 - share) * batch.x[order]
    if cut:
        x = batch.x.clone()
        x[:, 1:3] = batch.x[order][:, 1:3]
    out, _, labels = run.answer(batch, x)
    return share * F.cross_entropy(out, labels) + (1 - share) * F.cross_entropy(out, batch.labels[order][: len(out)])


@add("loss", "copies", rate=(0.9, 0.0))
def teacher(run: Run, batch: Batch, rate: float) -> Tensor:
    """A copy of the model follows it."""
    if "teacher" not in run.keep:
        run.keep["teacher"] = copy.deepcopy(run.nets[0]).requires_grad_(False)
    net, run.nets[0] = run.nets[0], run.keep["teacher"]
    with torch.no_grad():
        for old, new in zip(run.nets[0].parameters(), net.parameters()):
            if old.shape == new.shape:
                old.mul_(rate).add_(new, alpha=1 - rate)
        wanted = run.forward(batch.x)
    run.nets[0] = net
    return F.mse_loss(run.forward(batch.x), wanted.detach() + 0.1)


@add("loss", "extras", "sparse_too", what=("centers", "temperature", "latent"))
def outside(run: Run, batch: Batch, what: str) -> Tensor:
    """Trained tensors outside of the model."""
    if what == "latent":
        return mse(run, batch, batch.x + run.extras["latent"])
    out, _, labels = run.answer(batch)
    if what == "centers":
        return (out - run.extras["centers"][labels]).square().sum(1).mean()
    return F.cross_entropy(out * run.extras["temperature"].exp(), labels)


@add("loss", "two", detached=(False, True), shared=(False, True))
def chained(run: Run, batch: Batch, detached: bool, shared: bool) -> Tensor:
    """One model behind another one."""
    out, target, _ = run.answer(batch)
    last = run.forward(out.detach() if detached else out, 1)
    return F.mse_loss(last, target[: len(last)]) + (out.mean() if shared else 0.1 * last.mean())


@add("loss", reentrant=(False, True))
def computed_again(run: Run, batch: Batch, reentrant: bool) -> Tensor:
    """A checkpoint around the model."""
    out = checkpoint(run.forward, batch.x.clone().requires_grad_(), use_reentrant=reentrant)
    return F.mse_loss(out, batch.target[: len(out)])


@add("loss")
def past_the_wrapper(run: Run, batch: Batch) -> Tensor:
    """The wrapped module used by itself, too."""
    out, target, _ = run.answer(batch)
    head = run.core().head
    return F.mse_loss(out, target) + head(target).square().mean() + 0.1 * head.weight.square().sum()


@add("loss", power=(2, 1))
def weight_decay_in_loss(run: Run, batch: Batch, power: int) -> Tensor:
    """The parameters themselves in the loss."""
    alone = [param for param in run.trained() if param.shape != (6, WIDTH)]
    return mse(run, batch) + 0.01 * sum((param.abs() ** power).sum() for param in alone)


# --- hooks, and inputs that are leaves ------------------------------------------------------------------------------


@add("loss", what=("note", "scale", "clamp", "retain"))
def hooked_output(run: Run, batch: Batch, what: str) -> Tensor:
    """A hook on the output, or its gradient kept."""
    out, target, _ = run.answer(batch)
    if what == "note":
        out.register_hook(lambda grad: run.note("gradient of the output", grad))
    elif what == "retain":
        out.retain_grad()
        kept = run.keep.get("out")
        run.note("gradient of the last output", None if kept is None else kept.grad)
        run.keep["out"] = out
    else:
        out.register_hook(lambda grad: grad * 0.5 if what == "scale" else grad.clamp(-0.05, 0.05))
    return F.mse_loss(out, target)


def leaf_of(batch: Batch, own: bool) -> Tensor:
    """The batch's rows themselves, or a tensor of the program's own, as a leaf."""
    x: Tensor = batch.x.clone().detach() if own else batch.x
    x.requires_grad = True
    return x


_HOOKS = ("none", "note", "scale", "two", "behind")


@add("loss", own=(False, True), hook=_HOOKS, later=(False, True), middle=(False, True))
def leaf(run: Run, batch: Batch, own: bool, hook: str, later: bool, middle: bool) -> Tensor:
    """The input is a leaf, perhaps with hooks, of before or behind the forward; its gradient is seen a step later."""
    kept = run.keep.get("leaf")
    run.note("gradient of the last leaf", None if kept is None else kept.grad)
    run.keep["leaf"] = x = leaf_of(batch, own)

    def add_hooks() -> None:
        if hook in ("note", "two"):
            x.register_hook(lambda grad: run.note("gradient of the leaf", grad))
        if hook in ("scale", "two"):
            x.register_hook(lambda grad: grad * 2)
        if hook == "behind":
            x.register_post_accumulate_grad_hook(lambda tensor: run.note("accumulated", tensor.grad))

    if not later:
        add_hooks()
    out, target, _ = run.answer(batch, x * 2 if middle else x)
    if later:
        add_hooks()
    return F.mse_loss(out, target)


@add("loss", clean=(True, False))
def adversarial(run: Run, batch: Batch, clean: bool) -> Tensor:
    """The batch moved along its gradient, as in FGSM; that gradient comes by a backward."""
    x = leaf_of(batch, True)
    mse(run, batch, x).backward()
    run.note("gradient of the input", x.grad)
    if clean:
        run.zero_grad()
    return mse(run, batch, x.detach() if x.grad is None else (x + 0.1 * (x.grad * 20).tanh()).detach())


# --- second order ---------------------------------------------------------------------------------------------------


def slope_of(run: Run, x: Tensor, curved: bool = False) -> tuple[Tensor, Tensor]:
    """The model's output, and the gradient of its sum by `x`."""
    out = run.forward(x)
    (slope,) = torch.autograd.grad((out.square() if curved else out).sum(), x, create_graph=True)
    return out, slope


@add("loss", "second", "grad", "slope", curved=(False, True), main=(True, False), third=(False, True))
def gradient_penalty(run: Run, batch: Batch, curved: bool, main: bool, third: bool) -> Tensor:
    """The slope of the model at its rows, in the loss; or the slope of the slope."""
    x = batch.x.clone().requires_grad_()
    out, slope = slope_of(run, x, curved or third)
    if third:
        (again,) = torch.autograd.grad(slope.square().sum(), x, create_graph=True)
        return out.mean().square() + 0.01 * again.square().mean()
    penalty = ((slope.square().sum(1) + 0.1).sqrt() - 1).square().mean()
    return penalty + F.mse_loss(out, batch.target[: len(out)]) if main else penalty


@add("loss", "second", "grad", "slope", "two", whole=(True, False))
def penalty_of_two(run: Run, batch: Batch, whole: bool) -> Tensor:
    """The slope of one model behind another one, or of the other alone."""
    x = batch.x.clone().requires_grad_()
    middle = run.forward(x)
    last = run.forward(middle, 1)
    (slope,) = torch.autograd.grad(last.square().sum(), x if whole else middle, create_graph=True)
    return slope.square().sum(1).mean() + last.mean()


@add("loss", "second", "grad", inner=("mse", "cross_entropy"))
def penalty_on_parameters(run: Run, batch: Batch, inner: str) -> Tensor:
    """The norm of the parameters' gradients, in the loss."""
    out, target, labels = run.answer(batch)
    loss = F.mse_loss(out, target) if inner == "mse" else F.cross_entropy(out, labels)
    grads = torch.autograd.grad(loss, run.trained(), create_graph=True, allow_unused=True)
    return loss + sum(grad.abs().square().sum() for grad in grads if grad is not None)


@add("loss", "second", "grad", "extras", learned=(False, True), order=(2, 1), times=(1, 2))
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


@add("loss", "second", "grad", what=("jacobian", "hvp", "vjp", "jvp"), graph=(True, False))
def by_functional(run: Run, batch: Batch, what: str, graph: bool) -> Tensor:
    """torch.autograd.functional."""

    def total(x: Tensor) -> Tensor:
        out: Tensor = run.forward(x)
        return out.square().sum() if what == "hvp" else out.square().sum(0)

    x, functional = batch.x.clone(), torch.autograd.functional
    if what == "jacobian":
        found: Any = functional.jacobian(total, x, create_graph=graph)  # type: ignore[no-untyped-call]
    else:
        given = torch.ones(x.size(1)) if what == "vjp" else torch.ones_like(x)
        found = getattr(functional, what)(total, x, given, create_graph=graph)[1]
    loss = mse(run, batch)
    run.look("found", found)
    return loss + (0.01 * found.square().mean() if graph else 0)


@add("loss", "second", "grad")
def func_of_the_module(run: Run, batch: Batch) -> Tensor:
    """torch.func.grad over functional_call of the wrapped module's last layer."""
    head = run.core().head

    def loss(weights: Any, x: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(head, weights, (x,)).square().mean()
        return found

    with torch.no_grad():
        at = run.forward(batch.x)
    grads = torch.func.grad(loss)({name: param.detach() for name, param in head.named_parameters()}, at.clone())
    run.note("slopes", grads["weight"])
    return mse(run, batch) + (head.weight * grads["weight"]).sum()
