"""Before an optimizer's step: what must be alike on all ranks is compared, or made rank 0's."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from . import place
from .world import ADVICE, Divergence, agree, broadcast_, exchange, world

#: How far apart the same computation may be on two ranks by rounding alone, relative to the gradient's size.
_ROUNDING = 1e-3


class _Seen:
    """What is known of an optimizer."""

    def __init__(self) -> None:
        self.steps = 0
        self.unsteady: set[int] = set()  # ids of wrapped parameters whose gradients are equal up to rounding


_seen: weakref.WeakKeyDictionary[Any, _Seen] = weakref.WeakKeyDictionary()


@functools.cache
def watch_steps() -> None:
    """From now on look at the parameters of each of torch's optimizers that makes a step."""
    register_optimizer_step_pre_hook(before_step)


@torch.no_grad()
def before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """What lies in no wrapped model trains on all ranks alike, with rank 0's gradients: kernels may round otherwise.

    In steps 1, 2, 4, ... parameters and gradients are compared. A collective.

    Raises:
        Divergence: they differ.
    """
    if world.alone:
        return
    seen = _seen.setdefault(optimizer, _Seen())
    seen.steps += 1
    params = [param for group in optimizer.param_groups for param in group["params"] if param.grad is not None]
    inside = frozenset().union(*(each.parameter_ids() for each in world.models)) - seen.unsteady
    loose = [each.grad for each in params if id(each) not in inside]
    if loose:
        agree("the gradients of parameters outside of wrapped models", len(loose))
        broadcast_([each for each in loose if each.layout == torch.strided])
    if not seen.steps & (seen.steps - 1):
        _compare(params, seen)


def _compare(params: Sequence[Any], seen: _Seen) -> None:
    tensors = [each for param in params for each in (param, param.grad) if each.layout == torch.strided]
    of_grads = {id(param.grad): param for param in params}
    told = [each.value for each in exchange("the parameters and gradients of some steps", fingerprints(tensors))]
    for tensor, values in zip(tensors, zip(*told)):
        if len(set(values)) == 1:
            continue
        param = of_grads.get(id(tensor))
        low, high = min(map(float, values)), max(map(float, values))
        if param is not None and high - low <= _ROUNDING * high:
            broadcast_([tensor])
            seen.unsteady.add(id(param))
            continue
        raise Divergence(
            f"a {'parameter' if param is None else 'gradient'} of shape {list(tensor.shape)} differs between the ranks "
            f"before the step at {place.line()}: "
            + (f"something changed it on some ranks only. {ADVICE}" if param is None else _PAST)
        )


_PAST = (
    "it was computed past the wrapped model, by what a rank has of its own, as in a hook, or in a list or a function "
    "that knows the original layers. Compute it from what the model returns; pass a measured time through ddp.broadcast"
)


def fingerprints(tensors: Sequence[torch.Tensor]) -> list[str]:
    """The sum of each tensor's absolute values, as text, so that NaN equals NaN. One copy to the host."""
    if not tensors:
        return []
    parts = [each.detach().abs().double().sum() for each in tensors]
    return [repr(each) for each in torch.stack([part.to(parts[0].device) for part in parts]).tolist()]
