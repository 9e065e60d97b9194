"""Ahead of each optimizer's step: what has to be the same on all ranks is made so, or looked at."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..base import world
from ..ranks.collectives import Broadcast, bit_sums
from ..ranks.exchange import Divergence, exchange
from . import agreement

#: How far apart the same computation may be on two ranks by rounding alone, relative to the gradient's norm.
_ROUNDING = 1e-3
_seen: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Seen] = weakref.WeakKeyDictionary()


class _Seen:
    """What is known of an optimizer."""

    def __init__(self) -> None:
        self.steps = 0
        self.unsteady: set[int] = set()  # wrapped parameters whose gradients are equal up to rounding, by id

    def look(self, params: Sequence[torch.Tensor]) -> None:
        """Compare the ranks' gradients, and raise where they differ by more than rounding. A collective."""
        wrapped = agreement.wrapped()
        found = [(wrapped[id(each)], each) for each in params if id(each) in wrapped and _is_dense(each.grad)]
        self.unsteady |= _unsteady(found)

    def alone(self, params: list[torch.Tensor]) -> list[torch.Tensor]:
        """Those of its parameters whose gradients have to be made the same."""
        wrapped = agreement.wrapped()
        return [each for each in params if id(each) not in wrapped or id(each) in self.unsteady]


def watch() -> None:
    """From now on look at the parameters of each optimizer that makes a step."""
    register_optimizer_step_pre_hook(_before_step)


@torch.no_grad()
def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    place = world.current()
    if place.world_size == 1 or os.getpid() != place.pid:
        return
    seen = _seen.setdefault(optimizer, _Seen())
    seen.steps += 1
    _tell_of_repeated_work(place)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if not seen.steps & (seen.steps - 1):
        seen.look(params)
    alone: list[Any] = [each.grad for each in seen.alone(params) if _is_dense(each.grad)]
    if alone:
        # All ranks have computed it from whole batches, with the same result only if their kernels are deterministic.
        exchange("gradients of parameters outside of wrapped models")
        Broadcast(alone).send()


def _tell_of_repeated_work(place: world.World) -> None:
    """Warn once where no model is wrapped, as under a condition that didn't hold."""
    if place.wraps or place.told_of_repeated_work:
        return
    place.told_of_repeated_work = True
    line = f"; see {place.counted_at}, where the number of devices is asked for" if place.counted_at else ""
    work = f"no model is wrapped, so each of the {place.world_size} ranks does all of the work{line}"
    warnings.warn(work, stacklevel=4)


def _unsteady(params: Sequence[tuple[str, Any]]) -> set[int]:
    """Those of a wrapped model whose gradients aren't the same on all ranks, but are up to rounding. A collective."""
    # By place: two models of one optimizer may have the same names.
    own = bit_sums({str(place): param.grad for place, (_, param) in enumerate(params)})
    told = exchange("the gradients of some steps", own)
    different = [params[place] for place in range(len(params)) if len({theirs.get(str(place)) for theirs in told}) > 1]
    if not different:
        return set()
    main = [param.grad.clone() for _, param in different]
    Broadcast(main).send()
    apart = [float((param.grad - each).norm() / each.norm()) for (_, param), each in zip(different, main)]
    for (name, _), *ratios in zip(different, *exchange("how far gradients are apart", apart)):
        if not max(ratios) < _ROUNDING:
            raise Divergence(
                f"the gradient of parameter {name!r} differs between ranks: it was used past the wrapped model by what "
                "a rank has of its own, as in a hook or a list that forward fills. Compute it from what the model "
                "returns"
            )
    return {id(param) for _, param in different}


def _is_dense(grad: Any) -> bool:
    return isinstance(grad, torch.Tensor) and grad.layout == torch.strided and grad.numel() > 0
