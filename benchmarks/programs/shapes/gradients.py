"""What happens to gradients between backward and step. Each is called with the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..parts import SHAPES

if TYPE_CHECKING:
    from ..play import Run


@SHAPES.add("gradients", norm=(2.0, 1.0, float("inf")), one=(True, False))
def clip_norm(run: Run, norm: float, one: bool) -> None:
    """Clip the norm, of all parameters or of each."""
    params = list(run.nets[0].parameters())
    for group in [params] if one else [[each] for each in params]:
        if any(each.numel() for each in group):
            found = torch.nn.utils.clip_grad_norm_([each for each in group if each.numel()], 0.3, norm_type=norm)
            run.note("norm", found)


@SHAPES.add("gradients", "real")
def clip_value(run: Run) -> None:
    """Clip each number."""
    torch.nn.utils.clip_grad_value_(run.nets[0].parameters(), 0.05)


@SHAPES.add("gradients", data=(False, True))
def decay_by_hand(run: Run, data: bool) -> None:
    """Weight decay for all that has a gradient."""
    for param in run.nets[0].parameters():
        if param.grad is not None:
            if data:
                param.grad.data.add_(param.data, alpha=0.1)
            else:
                param.grad = param.grad + 0.1 * param.detach()


@SHAPES.add("gradients")
def noise_on_gradients(run: Run) -> None:
    """Random numbers for each gradient that is there: whether it is None decides on all that follows."""
    for param in run.nets[0].parameters():
        if param.grad is not None:
            param.grad += 0.01 * torch.randn_like(param, device="cpu").to(param.device)


@SHAPES.add("gradients")
def count_gradients(run: Run) -> None:
    """How many there are, how many are zeros."""
    grads = [param.grad for param in run.nets[0].parameters()]
    run.note("missing", sum(grad is None for grad in grads))
    run.note("zeros", sum(grad is not None and not grad.any() for grad in grads))


@SHAPES.add("gradients")
def smoothed(run: Run) -> None:
    """Gradients of the steps before are added (grokfast)."""
    kept = run.keep.setdefault("smoothed", {})
    for name, param in run.nets[0].named_parameters():
        if param.grad is not None:
            kept[name] = 0.5 * kept.get(name, torch.zeros_like(param)) + param.grad.detach()
            param.grad = param.grad + kept[name]
