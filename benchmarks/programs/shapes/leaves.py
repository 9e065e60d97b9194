"""Batches that become leaves of the graph: a model's input is differentiated, hooked, moved, trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F  # noqa: N812

from ..parts import SHAPES

if TYPE_CHECKING:
    from ..play import Batch, Run

Tensor = Any  # torch's methods have no types


def _leaf(batch: Batch, own: bool) -> Tensor:
    """The batch's rows themselves, or a tensor of the program's own, as a leaf."""
    x: Tensor = batch.x.clone().detach() if own else batch.x
    x.requires_grad = True
    return x


@SHAPES.add("loss", own=(False, True), hook=("none", "note", "scale", "two", "behind"), later=(False, True))
def leaf(run: Run, batch: Batch, own: bool, hook: str, later: bool) -> Tensor:
    """The input is a leaf, perhaps with hooks, of before or behind the forward; its gradient is seen a step later."""
    kept = run.keep.get("leaf")
    run.note("gradient of the last leaf", None if kept is None else kept.grad)
    run.keep["leaf"] = x = _leaf(batch, own)

    def behind(tensor: Tensor) -> None:
        run.note("accumulated", tensor.grad)

    def add_hooks() -> None:
        if hook in ("note", "two"):
            x.register_hook(lambda grad: run.note("gradient of the leaf", grad))
        if hook in ("scale", "two"):
            x.register_hook(lambda grad: grad * 2)
        if hook == "behind":
            x.register_post_accumulate_grad_hook(behind)

    if not later:
        add_hooks()
    out, target, _ = run.answer(batch, x)
    if later:
        add_hooks()
    return F.mse_loss(out, target)


@SHAPES.add("backward", own=(False, True), by=("data", "data in place", "no_grad"), clears=("none", "zeros", "nothing"))
def attack(run: Run, own: bool, by: str, clears: str) -> Tensor:
    """PGD on one leaf, which is moved in place; then training with where it went."""
    batch = run.batch()
    x = _leaf(batch, own)
    start = x.detach().clone()
    for _ in range(3):
        out, target, _ = run.answer(batch, x)
        loss: Tensor = F.mse_loss(out, target)
        loss.backward()
        run.note("gradient of the input", x.grad)
        if x.grad is None:
            break
        move = 0.2 * (x.grad * 20).tanh()
        if by == "data":
            x.data = torch.max(torch.min(x + move, start + 0.3), start - 0.3).data
        elif by == "data in place":
            x.data.add_(move).clamp_(-2, 2)
        else:
            with torch.no_grad():
                x += move
        if clears == "none":
            x.grad = None
        elif clears == "zeros":
            x.grad.zero_()
    run.zero_grad()
    out, target, _ = run.answer(batch, x.detach())
    loss = F.mse_loss(out, target)
    loss.backward()
    return loss


@SHAPES.add("backward", kind=("SGD", "Adam"), what=("rows", "difference"), trains=(False, True))
def optimized_input(run: Run, kind: str, what: str, trains: bool) -> Tensor:
    """An optimizer over the input, or over what is added to it; the model is trained along, or after."""
    batch = run.batch()
    moved: Tensor = batch.x if what == "rows" else torch.zeros_like(batch.x)
    moved.requires_grad = True
    settings: dict[str, Any] = {"eps": 0.1} if kind == "Adam" else {"momentum": 0.5}
    optimizer = getattr(torch.optim, kind)([moved], lr=0.1, **settings)
    for _ in range(2):
        optimizer.zero_grad()
        out, target, _ = run.answer(batch, moved if what == "rows" else batch.x + moved)
        loss: Tensor = F.mse_loss(out, target)
        loss.backward()
        run.note("gradient of the input", moved.grad)
        optimizer.step()
        run.note("input", moved)
    if not trains:
        run.zero_grad()
        out, target, _ = run.answer(batch, (moved if what == "rows" else batch.x + moved).detach())
        loss = F.mse_loss(out, target)
        loss.backward()
    return loss
