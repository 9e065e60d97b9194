"""What makes the ranks' models one: rank 0's parameters and buffers behind a forward, gradients ahead of a step."""

from __future__ import annotations

import collections
import hashlib
import os
import warnings
import weakref
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..base import world
from ..batches import fewer
from ..ranks.collectives import Broadcast, bit_sums, checksum
from ..ranks.exchange import Divergence, exchange


class Agreement:
    """Keeps one wrapped module's parameters and buffers rank 0's, and the indices of all ranks' CUDA devices."""

    def __init__(self) -> None:
        self.device_ids = [world.numbered_device().index] if world.device().type == "cuda" else []
        self._joined: dict[int, tuple[str, torch.Tensor]] = {}  # parameters that have rank 0's values, by id
        self._checked = False
        self._trained = False  # whether the last forward did
        self._version = 0  # of the buffers, behind it
        self._changes = False  # whether they were seen to change before the next one
        self._calls: collections.Counter[bool] = collections.Counter()  # by whether the module trains
        self._written: dict[str, None] = {}  # names of what a forward was seen to write into
        self._broadcast = Broadcast([])
        self._places: list[int] = []  # of what is sent so
        _all.add(self)

    def __deepcopy__(self, memo: Any) -> Agreement:
        new = Agreement()
        new.device_ids, new._written = self.device_ids, dict(self._written)
        return new

    def join(self, model: nn.Module) -> None:
        """Check that all ranks have the same model; take rank 0's values of what is new. A collective."""
        params = dict(model.named_parameters())
        new = {name: param for name, param in params.items() if id(param) not in self._joined}
        self._joined = {id(param): (name, param) for name, param in params.items()}
        tensors = {**new, **dict(model.named_buffers())}
        shapes = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors.items()]
        digest = hashlib.sha256(repr(shapes).encode()).hexdigest()
        told = exchange("ddp.wrap_model", [digest, self.device_ids])
        if any(theirs != digest for theirs, _ in told):
            raise Divergence("the ranks' models differ in the names, shapes or dtypes of parameters or buffers")
        self.device_ids = list(dict.fromkeys(index for _, ids in told for index in ids))
        Broadcast(tensors.values()).send()

    def join_new(self, model: nn.Module) -> None:
        """The same for layers that were added since. A collective if there are any."""
        if any(id(each) not in self._joined for each in model.parameters() if isinstance(each, nn.Parameter)):
            self.join(model)

    @_disable_dynamo
    def begin(self, model: nn.Module, holders: Mapping[nn.Module, Any]) -> dict[str, int]:
        """Ahead of a forward: sums of all that it may write into, in calls that are looked through (1, 2, 4, ...).

        Buffers become rank 0's once more where they have changed since the last forward: `torch.utils.checkpoint` runs
        layers again in the backward pass, and BatchNorm takes each rank's own rows into its statistics.
        """
        self._calls[model.training] += 1
        calls = self._calls[model.training]
        buffers = list(chain.from_iterable(holders.values()))
        trains = any(inner.training for inner in holders)
        if trains and self._trained and not calls & (calls - 1):
            changed = exchange("buffers between two forwards", _version(buffers) != self._version)
            self._changes = self._changes or any(changed)
        if self._trained and (self._changes or not trains):
            self._send(buffers)
        self._trained = trains
        if not self._checked and model.training and torch.is_grad_enabled():
            self._checked = True
            _check_equal(model)
        return {} if calls & (calls - 1) else _sums(model)

    @_disable_dynamo
    def end(self, model: nn.Module, holders: Mapping[nn.Module, Any], before: Mapping[str, int]) -> None:
        """After it: all ranks take what rank 0 wrote in place. A collective where there may be anything.

        Args:
            model: the wrapped module.
            holders: the modules in it that have buffers, with these.
            before: what `begin` returned.
        """
        if before:
            own = [name for name, after in _sums(model).items() if before.get(name) != after]
            parts = exchange("what a forward wrote into parameters and buffers", own)
            self._written.update(dict.fromkeys(name for part in parts for name in part))
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())} if self._written else {}
        found = [tensors[name].data for name in self._written if name in tensors]
        buffers = list(chain.from_iterable(holders.values()))
        if any(inner.training for inner in holders):  # nn.DataParallel keeps its first replica's
            found += buffers
        self._send(found)
        self._version = _version(buffers)

    def _send(self, found: list[torch.Tensor]) -> None:
        """Rank 0's values of these, to all ranks."""
        places = [*map(torch.Tensor.data_ptr, found), *map(torch.Tensor.numel, found)]
        if places != self._places:
            self._places, self._broadcast = places, Broadcast(found)
        self._broadcast.send()


def _version(buffers: Collection[torch.Tensor]) -> int:
    """How often buffers were written into."""
    with suppress(RuntimeError):  # tensors of inference have none
        return sum(map(attrgetter("_version"), buffers))
    return sum(each._version for each in buffers if not each.is_inference())


def _check_equal(model: nn.Module) -> None:
    """Raise if the parameters aren't the same, bit for bit, on all ranks."""
    params = dict(model.named_parameters())
    sums = torch.stack([checksum(param) for param in params.values()] or [torch.zeros(2, dtype=torch.int64)])
    parts = exchange("the first training step", sums.tolist())
    for index, name in enumerate(params):
        if any(part[index] != parts[0][index] for part in parts):
            raise Divergence(
                f"parameter {name!r} differs between ranks before the first training step: something changed it on "
                "some ranks only (an initialisation with a rank's own random numbers, a checkpoint loaded on one rank)"
            )


def _sums(model: nn.Module) -> dict[str, int]:
    """Of what a forward may write into. Where it trains, all buffers become rank 0's anyway."""
    tensors = {**dict(model.named_parameters()), **({} if model.training else dict(model.named_buffers()))}
    return bit_sums({name: each for name, each in tensors.items() if not (each.is_sparse or each.is_meta)})


_all: weakref.WeakSet[Agreement] = weakref.WeakSet()


def _wrapped() -> dict[int, str]:
    """The names of all parameters of wrapped models, by id."""
    return {place: name for each in _all for place, (name, _) in each._joined.items()}


class _Seen:
    """What is known of an optimizer."""

    def __init__(self) -> None:
        self.steps = 0
        self.unsteady: set[int] = set()  # wrapped parameters whose gradients are equal up to rounding, by id


#: How far apart the same computation may be on two ranks by rounding alone, relative to the gradient's norm.
_ROUNDING = 1e-3
_seen: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Seen] = weakref.WeakKeyDictionary()


def watch_steps() -> None:
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
    if place.world_size == 1:
        return
    params = [param for group in optimizer.param_groups for param in group["params"] if _is_dense(param.grad)]
    names = _wrapped()
    if not seen.steps & (seen.steps - 1):
        seen.unsteady |= _unsteady([(names[id(each)], each) for each in params if id(each) in names])
    alone: list[Any] = [each.grad for each in params if id(each) not in names or id(each) in seen.unsteady]
    if alone:
        # All ranks have computed it from whole batches, with the same result only if their kernels are deterministic.
        exchange("gradients of parameters outside of wrapped models")
        Broadcast(alone).send()


def _tell_of_repeated_work(place: world.World) -> None:
    """Where no model is wrapped (so far, if `setup` was given the devices): end the other ranks, or warn once."""
    if place.wraps or place.told_of_repeated_work:
        return
    place.told_of_repeated_work = True
    if place.takes_all:
        fewer.release_idle(5)
    if place.world_size == 1:
        return
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
