"""Losses, of first order. Each is called with the run and a batch.

Tags: `level` makes gradients vanish but for rounding; `grad` calls autograd.grad; `two` needs a second model;
`extras` trains tensors outside of models; `sparse_too` may be used with sparse gradients.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from ..blocks import WIDTH
from ..parts import SHAPES

if TYPE_CHECKING:
    from ..play import Batch, Run

Tensor = Any  # torch's methods have no types


@SHAPES.add("loss", "sparse_too", how=("mean", "sum", "rows", "by hand"), kind=("mse", "l1", "smooth_l1", "huber"))
def distance(run: Run, batch: Batch, how: str, kind: str) -> Tensor:
    """A distance from the targets, summed up in some way."""
    out, target, _ = run.answer(batch)
    loss = getattr(F, f"{kind}_loss")
    if how == "rows":
        found: Tensor = loss(out, target, reduction="none").mean(1).sum() / len(out)
    elif how == "by hand":
        found = (out - target).pow(2).sum(1).sqrt().mean()
    else:
        found = loss(out, target, reduction=how) * (1.0 if how == "mean" else 0.1)
    return found


@SHAPES.add(
    "loss", "sparse_too", weights=(False, True), ignore=(False, True), smoothing=(0.0, 0.1), how=("mean", "sum")
)
def cross_entropy(run: Run, batch: Batch, weights: bool, ignore: bool, smoothing: float, how: str) -> Tensor:
    """The loss of classes, with its options."""
    out, _, labels = run.answer(batch)
    weight = torch.tensor([0.5, 1.0, 2.0, 1.5]) if weights else None
    if ignore and float((labels != 1).sum()) > 0:
        return F.cross_entropy(out, labels, weight=weight, ignore_index=1, label_smoothing=smoothing, reduction=how)
    return F.cross_entropy(out, labels, weight=weight, label_smoothing=smoothing, reduction=how)


@SHAPES.add("loss", "sparse_too", kind=("log_softmax", "nll"))
def by_log(run: Run, batch: Batch, kind: str) -> Tensor:
    """Losses of logarithms, and how many were right."""
    out, target, labels = run.answer(batch)
    logs = F.log_softmax(out, dim=1)
    run.note("right", (out.argmax(1) == labels).sum().item())
    if kind == "nll":
        return F.nll_loss(logs, labels)
    return F.kl_div(logs, target.softmax(1), reduction="batchmean")


@SHAPES.add("loss", positive=(False, True), probabilities=(False, True))
def binary(run: Run, batch: Batch, positive: bool, probabilities: bool) -> Tensor:
    """The loss of yes and no."""
    out, target, _ = run.answer(batch)
    wanted = (target > 0).to(out.dtype)
    if probabilities:
        return F.binary_cross_entropy(torch.sigmoid(out), wanted)
    return F.binary_cross_entropy_with_logits(out, wanted, pos_weight=torch.ones(WIDTH) * 2 if positive else None)


@SHAPES.add("loss")
def contrastive(run: Run, batch: Batch) -> Tensor:
    """All rows against all others."""
    out, target, _ = run.answer(batch)
    likeness = (out + 0.1) @ target.t() / 2
    places = torch.arange(len(out))
    return (F.cross_entropy(likeness, places) + F.cross_entropy(likeness.t(), places)) / 2


@SHAPES.add("loss", by=("topk", "sort", "max"))
def hardest(run: Run, batch: Batch, by: str) -> Tensor:
    """Those rows alone that are worst."""
    out, target, _ = run.answer(batch)
    each = (out - target).square().mean(1)
    if by == "topk":
        return each.topk(max(1, len(each) // 2)).values.mean()
    return each.sort(descending=True)[0][0] if by == "sort" else each.max()


@SHAPES.add("loss", "level", of=("std", "var", "median", "quantile"))
def spread(run: Run, batch: Batch, of: str) -> Tensor:
    """Statistics over all rows."""
    out, target, _ = run.answer(batch)
    if of == "quantile":
        return (out - target).quantile(0.4, dim=0).square().sum()
    if of == "median":
        return (out - target).median(0)[0].square().sum()
    found: Tensor = getattr(out, of)(0, correction=0).add(0.1).sum() if of == "var" else out.std() + out.mean().square()
    return found


@SHAPES.add("loss", "sparse_too", by=("product", "index", "where", "fill"))
def masked(run: Run, batch: Batch, by: str) -> Tensor:
    """Some rows alone, or some numbers."""
    out, target, labels = run.answer(batch)
    mask = labels > 0
    each = (out - target).square()
    if by == "product":
        return (each.mean(1) * mask).sum() / (mask.sum() + 1)
    if by == "index":
        return each[mask].sum() / len(out)
    if by == "where":
        return torch.where(target > 0, each, out * 0.1).mean()
    return each.masked_fill(mask[:, None], 0.0).mean()


@SHAPES.add("loss", what=("first", "last", "column", "strided", "gathered"))
def part_of_output(run: Run, batch: Batch, what: str) -> Tensor:
    """Some of the output alone: some replicas have no gradient."""
    out, _, labels = run.answer(batch)
    parts = {"first": lambda: out[:1], "last": lambda: out[-2:], "column": lambda: out[:, 1]}
    parts["strided"] = lambda: out[::2, 1:]
    parts["gathered"] = lambda: out.gather(1, labels[:, None])
    return parts[what]().square().mean()


@SHAPES.add("loss", "sparse_too", other=("flipped", "same", "next"))
def two_forwards(run: Run, batch: Batch, other: str) -> Tensor:
    """Two forwards, one backward."""
    out, *_ = run.answer(batch)
    x = {"flipped": lambda: batch.x.flip(0), "same": lambda: batch.x, "next": lambda: run.batch().x}[other]()
    again = run.forward(x)
    size = min(len(out), len(again))
    return F.mse_loss(out[:size], again[:size] * 0.5 + 0.1) + out.mean().square()


@SHAPES.add("loss", "sparse_too", how=("mean", "sum", "first"))
def in_the_model(run: Run, batch: Batch, how: str) -> Tensor:
    """The model returns its loss: a vector, an entry for each replica."""
    x = batch.x
    losses = run.forward(x, target=batch.target) if run.spec.models[0].call != "uneven" else run.answer(batch)[0]
    run.look("losses", losses)
    if how == "first":
        return losses.reshape(-1)[0]
    return losses.mean() if how == "mean" else losses.sum()


@SHAPES.add("loss", "sparse_too")
def as_it_comes(run: Run, batch: Batch) -> Tensor:
    """What the script does next depends on a number."""
    out, target, _ = run.answer(batch)
    loss = F.mse_loss(out, target)
    if loss.item() > 1.0:
        loss = loss * 0.5 + out.abs().mean()
    return loss


@SHAPES.add("loss", cut=(False, True))
def mixup(run: Run, batch: Batch, cut: bool) -> Tensor:
    """Rows mixed with others."""
    order = torch.randperm(len(batch.x))
    share = 0.3 + 0.4 * torch.rand(()).item()
    x = share * batch.x + (1 - share) * batch.x[order]
    if cut:
        x = batch.x.clone()
        x[:, 1:3] = batch.x[order][:, 1:3]
    out, _, labels = run.answer(batch, x)
    other = batch.labels[order][: len(out)]
    return share * F.cross_entropy(out, labels) + (1 - share) * F.cross_entropy(out, other)


@SHAPES.add("loss", "copies", rate=(0.9, 0.0))
def teacher(run: Run, batch: Batch, rate: float) -> Tensor:
    """A copy of the model follows it."""
    if "teacher" not in run.keep:
        run.keep["teacher"] = copy.deepcopy(run.nets[0])
        for param in run.keep["teacher"].parameters():
            param.requires_grad_(False)
    net, run.nets[0] = run.nets[0], run.keep["teacher"]
    with torch.no_grad():
        for old, new in zip(run.keep["teacher"].parameters(), net.parameters()):
            if old.shape == new.shape:
                old.mul_(rate).add_(new, alpha=1 - rate)
        wanted = run.forward(batch.x)
    run.nets[0] = net
    out = run.forward(batch.x)
    return F.mse_loss(out, wanted.detach() + 0.1)


@SHAPES.add("loss", "extras", "sparse_too", what=("centers", "temperature", "latent"))
def outside(run: Run, batch: Batch, what: str) -> Tensor:
    """Trained tensors outside of the model."""
    if what == "latent":
        out, target, _ = run.answer(batch, batch.x + run.extras["latent"])
        return F.mse_loss(out, target)
    out, _, labels = run.answer(batch)
    if what == "centers":
        return (out - run.extras["centers"][labels]).square().sum(1).mean()
    return F.cross_entropy(out * run.extras["temperature"].exp(), labels)


@SHAPES.add("loss", "two", detached=(False, True), shared=(False, True))
def chained(run: Run, batch: Batch, detached: bool, shared: bool) -> Tensor:
    """One model behind another one."""
    out, target, _ = run.answer(batch)
    last = run.forward(out.detach() if detached else out, 1)
    size = len(last)
    return F.mse_loss(last, target[:size]) + (out.mean() if shared else 0.1 * last.mean())


@SHAPES.add("loss", clean=(True, False))
def adversarial(run: Run, batch: Batch, clean: bool) -> Tensor:
    """The batch moved along its gradient, as in FGSM; that gradient comes by a backward."""
    x = batch.x.clone().detach().requires_grad_()
    out, target, _ = run.answer(batch, x)
    loss: Tensor = F.mse_loss(out, target)
    loss.backward()
    run.note("gradient of the input", x.grad)
    if clean:
        run.zero_grad()
    moved = x.detach() if x.grad is None else (x + 0.1 * (x.grad * 20).tanh()).detach()
    out, target, _ = run.answer(batch, moved)
    return F.mse_loss(out, target)


@SHAPES.add("loss", reentrant=(False, True))
def computed_again(run: Run, batch: Batch, reentrant: bool) -> Tensor:
    """A checkpoint around the model."""
    x = batch.x.clone().requires_grad_()
    out = checkpoint(run.forward, x, use_reentrant=reentrant)
    return F.mse_loss(out, batch.target[: len(out)])


@SHAPES.add("loss", what=("note", "scale", "clamp", "retain"))
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


@SHAPES.add("loss", what=("note", "scale", "grad"))
def hooked_input(run: Run, batch: Batch, what: str) -> Tensor:
    """A hook on the input, or its gradient seen a step later."""
    x: Tensor = batch.x.clone().requires_grad_()
    if what == "grad":
        kept = run.keep.get("x")
        run.note("gradient of the last input", None if kept is None else kept.grad)
        run.keep["x"] = x
    else:
        x.register_hook(lambda grad: run.note("gradient of the input", grad) if what == "note" else grad * 2)
    middle = x * 2
    out, target, _ = run.answer(batch, middle)
    return F.mse_loss(out, target)


@SHAPES.add("loss")
def past_the_wrapper(run: Run, batch: Batch) -> Tensor:
    """The wrapped module used by itself, too."""
    out, target, _ = run.answer(batch)
    net: Any = run.nets[0]
    head = (net.module if hasattr(net, "module") else net.features.module).head
    return F.mse_loss(out, target) + head(target).square().mean() + 0.1 * head.weight.square().sum()


@SHAPES.add("loss", power=(2, 1))
def weight_decay_in_loss(run: Run, batch: Batch, power: int) -> Tensor:
    """The parameters themselves in the loss."""
    out, target, _ = run.answer(batch)
    alone = [param for param in run.trained() if param.shape != (6, WIDTH)]
    return F.mse_loss(out, target) + 0.01 * sum((param.abs() ** power).sum() for param in alone)
