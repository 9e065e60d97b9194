"""What makes the ranks' models one: rank 0's parameters and buffers, at the start and behind each forward."""

from __future__ import annotations

import collections
import hashlib
import weakref
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo

from ..base import world
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
        """Check that all ranks have the same model; take rank 0's values where that wasn't done before. A collective.

        Raises:
            Divergence: the ranks' models differ in names, shapes or dtypes.
        """
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


def wrapped() -> dict[int, str]:
    """The names of all parameters of wrapped models, by id."""
    return {place: name for each in _all for place, (name, _) in each._joined.items()}
