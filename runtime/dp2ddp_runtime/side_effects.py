"""What a forward leaves behind in its module: as with `nn.DataParallel`, what its first replica wrote in place.

A replica is a copy of the module with the tensors of the first device. So what a forward assigns (`self.steps += 1`,
`self.memory = ...`, a new layer, `self.u.data = ...` of a frozen parameter) is lost with the copy; what it writes in
place into a buffer or parameter stays, from the first replica. Ranks run the module itself, and keep to that.

Always looked after are modules of the script's own classes. What is changed in torch's (hand-written spectral norms
assign to the layer that they wrap) is found in calls whose number is a power of two, and looked after from then on.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.nn.modules.lazy import LazyModuleMixin

from . import world
from .collectives import broadcast_coalesced, plain
from .exchange import exchange
from .inputs import checksum

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
Dict = dict[str, Any]
Held = tuple[nn.Module, Dict, Dict, Dict]  # a module, a dictionary of its, what it held, what the forward finds in it


class Before(NamedTuple):
    """What there is ahead of a forward."""

    held: list[Held]
    trained: list[tuple[nn.Parameter, torch.Tensor]]  # parameters, and their data
    sums: dict[str, int]  # of all that a forward may write into, by name; none in calls that aren't looked through


class SideEffects:
    """Looks after the side effects of one wrapped module's forwards."""

    def __init__(self) -> None:
        self._calls: collections.Counter[bool] = collections.Counter()  # by whether the module trains
        self._changed: dict[nn.Module, None] = {}  # those of torch's classes that a forward was seen to change
        self._written: dict[str, None] = {}  # names of what a forward was seen to write into

    @_disable_dynamo
    def begin(self, module: nn.Module, modules: Sequence[nn.Module]) -> Before:
        """Ahead of a forward: what there is in `module`, whose `modules` are these."""
        self._calls[module.training] += 1
        calls, sums = self._calls[module.training], {}
        watched = [inner for inner in modules if _is_own(inner) or inner in self._changed]
        if not calls & (calls - 1):
            watched, sums = [inner for inner in modules if _author(inner)], _sums(module)
        params = [param for inner in watched for param in inner._parameters.values() if param is not None]
        trained = [(param, param.data) for param in params if param.requires_grad and torch.is_grad_enabled()]
        stand_ins: dict[Any, Any] = {}
        return Before([held for inner in watched for held in _hold(inner, stand_ins)], trained, sums)

    @_disable_dynamo
    def undo(self, before: Before) -> None:
        """After it: take back what it assigned."""
        for module, current, was, given in before.held:
            same = len(current) == len(given) and all(map(is_, current.values(), given.values()))
            if same and was is given:
                continue
            pairs = zip(was.values(), given.values())
            if not same or any(old is not new and old.data_ptr() != new.data_ptr() for old, new in pairs):
                self._changed[module] = None
            current.clear()
            current.update(was)

    @_disable_dynamo
    def agree(self, module: nn.Module, before: Before) -> None:
        """After `undo`: all ranks take what rank 0 wrote in place. A collective where there may be anything."""
        for param, data in before.trained:
            # An RNN's flatten_parameters() moves them, and changes nothing.
            if param.data_ptr() != data.data_ptr() and not checksum(param).equal(checksum(data)):
                raise RuntimeError(
                    f"forward assigned to `.data` of a trained parameter (shape {tuple(param.shape)}), which only a "
                    "replica of nn.DataParallel forgets after its backward: let forward compute with another tensor"
                )
        if before.sums:
            own = [name for name, after in _sums(module).items() if before.sums.get(name) != after]
            parts = exchange("what a forward wrote into parameters and buffers", own)
            self._written.update(dict.fromkeys(name for part in parts for name in part))
        if self._written:
            tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            broadcast_coalesced([tensors[name].data for name in self._written if name in tensors])


def _is_own(module: nn.Module) -> bool:
    """Whether a module may assign to itself: torch's do so in hooks alone."""
    author = _author(module)
    return author == "script" or (author == "torch" and bool(module._forward_hooks or module._forward_pre_hooks))


def _author(module: nn.Module) -> str:
    """Who wrote a module's class; nobody where attributes change by themselves: compiled, scripted, lazy, wrapped."""
    kind = type(module)
    if kind not in _authors:
        nobodys = (torch.jit.ScriptModule, LazyModuleMixin, nn.parallel.DistributedDataParallel)
        is_nobodys = issubclass(kind, nobodys) or kind.__module__.startswith("torch._")
        _authors[kind] = "" if is_nobodys else "torch" if kind.__module__.startswith("torch.") else "script"
    return _authors[kind]


_authors: dict[type, str] = {}


def _hold(module: nn.Module, stand_ins: dict[Any, Any]) -> Iterator[Held]:
    """Notes what a module has, and puts stand-ins for what backward needs as the forward made it.

    As in a replica, frozen parameters are new tensors with the same memory; on other ranks than 0, they and buffers are
    copies. Without grad the first replica has the tensors themselves.
    """
    copies = world.rank() > 0 and _is_own(module)
    current: Any
    for current in (module.__dict__, module._modules, module._parameters, module._buffers):
        was = given = current.copy()
        lends = current is module._parameters or (copies and current is module._buffers)
        if was and lends and torch.is_grad_enabled():
            for name, tensor in was.items():
                if type(tensor) in (torch.Tensor, nn.Parameter) and not tensor.requires_grad:
                    data = tensor.detach().clone() if copies else tensor.detach()
                    stand_in = nn.Parameter(data, False) if isinstance(tensor, nn.Parameter) else data
                    current[name] = stand_ins.setdefault(tensor, stand_in)
            given = current.copy()
        yield module, current, was, given


def _sums(module: nn.Module) -> dict[str, int]:
    """Of what a forward may write into. Where it trains, all buffers become rank 0's anyway."""
    tensors = {**dict(module.named_parameters()), **({} if module.training else dict(module.named_buffers()))}
    flat = {name: plain(each).view(-1) for name, each in tensors.items() if not (each.is_sparse or each.is_meta)}
    bits = [each.view(_BITS.get(each.element_size(), torch.int64)) for each in flat.values()]
    return dict(zip(flat, [int(each.sum(dtype=torch.int64)) for each in bits]))
