"""What a forward leaves behind in its module: as with `nn.DataParallel`, what its first replica wrote in place.

A replica is a copy of the module with the tensors of the first device. So what a forward assigns (`self.steps += 1`,
`self.memory = ...` of a buffer, `self.u.data = ...` of a parameter, a new layer) is lost with the copy; what it writes
in place into a buffer or parameter stays, from the first replica. Ranks run the module itself, and keep to that.

A forward works on stand-ins of what it may change, as in a replica, for backward still needs what it made of them when
the module is itself again: on rank 0 these share the memory of the parameters, on the other ranks they are copies.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from operator import is_
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.nn.modules.lazy import LazyModuleMixin

from . import collectives, world
from .exchange import exchange

_FIRST_LOOKED_THROUGH = 10  # calls; after these every one whose number is a power of two
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Dict = dict[str, Any]


class Lent(NamedTuple):
    """A buffer or parameter that something stands in for during a forward."""

    module: nn.Module
    members: Dict
    name: str
    tensor: Any
    stand_in: torch.Tensor
    address: int
    """Where the stand-in's data lay ahead of the forward."""

    def is_changed(self) -> bool:
        """Whether the forward wrote into the stand-in, or assigned to it."""
        assigned = self.stand_in.data_ptr() != self.address or bool(vars(self.stand_in))
        return assigned or not torch.equal(self.stand_in, self.tensor)


class Before(NamedTuple):
    """A module ahead of a forward."""

    dicts: list[tuple[nn.Module, list[tuple[Dict, Dict]]]]
    """Modules, with their dictionaries (attributes, parameters, buffers, children) and what was in them."""
    values: list[tuple[nn.Parameter, torch.Tensor, Dict]]
    """Trained parameters, with their data and attributes."""
    lent: list[Lent]
    sums: dict[str, int] | None
    """The bits of what the forward may write into, summed up, by name; None in calls that aren't looked through."""


class SideEffects:
    """Looks after the side effects of one wrapped module's forwards.

    The first calls are looked through, and then ever fewer; in all others only modules of the script's own classes, and
    what was seen to change.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[bool, bool], int] = {}
        self._modules: list[nn.Module] = []  # looked at in every call
        self._writing: dict[tuple[bool, bool], list[nn.Module]] = {}  # what needs stand-ins, by kind of call
        self._assigned: list[nn.Parameter] = []  # trained ones whose data a forward has assigned
        # What a forward has written into, by whether it trains: frozen parameters, and buffers where it doesn't train.
        # (Where it does, all buffers are rank 0's after each forward.)
        self._written: dict[bool, list[str]] = {True: [], False: []}

    def __deepcopy__(self, memo: dict[int, Any]) -> SideEffects:
        return SideEffects()

    @_disable_dynamo
    def begin(self, module: nn.Module) -> Before:
        """Ahead of a forward: what there is."""
        kind = (module.training, torch.is_grad_enabled())
        calls = self._calls[kind] = self._calls.get(kind, 0) + 1
        if calls > _FIRST_LOOKED_THROUGH and calls & (calls - 1):
            dicts = _dicts(self._modules)
            return Before(dicts, [], self._lend(self._writing.get(kind, []), first=False), None)
        modules = [inner for inner in module.modules() if not _is_foreign(inner)]
        changing = {id(inner) for inner in self._modules}
        self._modules = [inner for inner in modules if id(inner) in changing or _is_own(inner)]
        dicts, sums = _dicts(modules), self._sums(module)
        trained = [param for param in module.parameters() if param.requires_grad and param.is_leaf]
        first = calls == 1 and any(map(_assigns_data, set(map(type, self._modules))))
        values = [(param, param.data, vars(param).copy()) for param in trained]
        return Before(dicts, values, self._lend(modules, first=first), sums)

    def _lend(self, modules: list[nn.Module], *, first: bool) -> list[Lent]:
        """Puts stand-ins in the place of buffers and parameters. Without grad the first replica has these themselves.

        Stand-ins change the order in which gradients come, by which the reducer lays out its buckets. So a trained
        parameter has one only when it was seen to be assigned to, or in the first call of a model whose code does such.
        """
        if not torch.is_grad_enabled():
            return []
        is_own = {id(module) for module in self._modules}
        always = {id(param) for param in self._assigned}
        stand_ins: dict[int, torch.Tensor] = {}
        lent = []
        for module in modules:
            copied = world.rank() > 0 and id(module) in is_own
            groups: list[Any] = [module._parameters, module._buffers] if copied else [module._parameters]
            for members in groups:
                for name, tensor in members.items():
                    if type(tensor) not in (torch.Tensor, nn.Parameter) or not _has_bits(tensor):
                        continue
                    if not tensor.requires_grad or first or id(tensor) in always:
                        it = stand_ins.setdefault(id(tensor), _stand_in(tensor, copied=copied))
                        lent.append(Lent(module, members, name, tensor, it, it.data_ptr()))
        for one in lent:
            one.members[one.name] = one.stand_in
        return lent

    @_disable_dynamo
    def undo(self, before: Before) -> None:
        """After it: take back what it assigned."""
        for one in before.lent:
            if one.members.get(one.name) is one.stand_in:
                one.members[one.name] = one.tensor
        for module, dicts in before.dicts:
            changed = [_restore(current, was) for current, was in dicts]
            if any(changed) and not any(inner is module for inner in self._modules):
                self._modules.append(module)
        for param, data, attributes in before.values if torch.is_grad_enabled() else ():
            changed = [_restore(vars(param), attributes), param.data_ptr() != data.data_ptr()]
            if changed[1]:
                param.data = data
            if any(changed):
                self._assigned.append(param)

    @_disable_dynamo
    def agree(self, module: nn.Module, before: Before) -> None:
        """After `undo`: all ranks take what rank 0 wrote in place. A collective where there may be anything."""
        if before.sums is not None:
            changed = [one for one in before.lent if one.is_changed()]
            self._assigned += [one.tensor for one in changed if one.tensor.requires_grad]
            writing = {id(one.module): one.module for one in changed}
            writing.update((id(each), each) for each in module.modules() if _holds(each, self._assigned))
            self._writing[module.training, torch.is_grad_enabled()] = list(writing.values())
        written = self._written[module.training]
        if before.sums:
            after = self._sums(module)
            own = [name for name, was in before.sums.items() if after.get(name) != was]
            parts = exchange("what a forward wrote into parameters and buffers", note=own)
            written += dict.fromkeys(name for part in parts for name in part.note)
        if written:
            tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            collectives.broadcast_coalesced([tensors[name].data for name in written if name in tensors])

    def _sums(self, module: nn.Module) -> dict[str, int]:
        """Of what a forward may write into and hasn't been seen to."""
        tensors: Dict = {name: param for name, param in module.named_parameters() if not param.requires_grad}
        tensors.update({} if module.training else module.named_buffers())
        known = self._written[module.training]
        sums = {name: _sum(each) for name, each in tensors.items() if name not in known and _has_bits(each)}
        return dict(zip(sums, torch.stack(list(sums.values())).tolist())) if sums else {}


def _assigns_data(kind: type) -> bool:
    """Whether a class has a statement such as `self.weight.data = ...`."""
    own = [base for base in kind.__mro__ if not base.__module__.startswith(("torch.", "builtins"))]
    codes = [each.__code__ for base in own for each in vars(base).values() if isinstance(each, FunctionType)]
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        if any(each.opname == "STORE_ATTR" and each.argval == "data" for each in dis.get_instructions(code)):
            return True
    return False


def _is_own(module: nn.Module) -> bool:
    """Whether a module may assign to itself: torch's own do so in hooks alone."""
    hooked = module._forward_pre_hooks or module._forward_hooks
    return bool(hooked) or not type(module).__module__.startswith("torch.")


def _is_foreign(module: nn.Module) -> bool:
    """Whether a module's attributes are none of a script's business: compiled, scripted, lazy or wrapped ones."""
    kinds = (torch.jit.ScriptModule, LazyModuleMixin, nn.parallel.DistributedDataParallel)
    return isinstance(module, kinds) or type(module).__module__.startswith("torch._")


def _dicts(modules: list[nn.Module]) -> list[tuple[nn.Module, list[tuple[Dict, Dict]]]]:
    return [(module, [(each, each.copy()) for each in _own_dicts(module)]) for module in modules]


def _own_dicts(module: nn.Module) -> Iterator[Dict]:
    yield module.__dict__
    yield module._parameters
    yield module._buffers
    yield module._modules


def _stand_in(tensor: torch.Tensor, *, copied: bool) -> torch.Tensor:
    if tensor.requires_grad:
        alias: torch.Tensor = torch.ops.aten.alias(tensor)
        return alias
    data = tensor.detach().clone() if copied else tensor.detach()
    return nn.Parameter(data, requires_grad=False) if isinstance(tensor, nn.Parameter) else data


def _holds(module: nn.Module, params: list[nn.Parameter]) -> bool:
    return any(param is own for own in module._parameters.values() for param in params)


def _restore(current: Dict, was: Dict) -> bool:
    """Puts back what a dictionary held, in its order; returns whether that was needed."""
    if len(current) == len(was) and all(map(is_, current.values(), was.values())):
        return False
    current.clear()
    current.update(was)
    return True


def _has_bits(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device.type != "meta"


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    data = tensor.detach()
    data = torch.view_as_real(data) if data.is_complex() else data
    return data.contiguous().view(-1).view(_BITS[data.element_size()]).sum(dtype=torch.int64).cpu()
