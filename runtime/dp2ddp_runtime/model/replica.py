"""This rank's replica of a wrapped module: shallow copies of all modules, as `nn.DataParallel` makes them.

What a forward assigns lives and dies with the copies: the module never sees it, and a backward still does. See
https://github.com/pytorch/pytorch/blob/main/torch/nn/parallel/replicate.py, whose way this is. Copies that nothing has
changed serve the next forward, too: to make all of them anew takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress, islice
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from ..base import world
from ..base.nesting import identical

_REQUIRES_GRAD = attrgetter("requires_grad")
_FORMER = "_former_parameters"  # a replica has none that are listed as such: they are in here, by their names
_PARTS = ("_modules", "_parameters", "_buffers")


class Replica:
    """The copies of a module and all modules in it, kept from forward to forward."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._keeps = False

    def look_again(self) -> None:
        """See which modules there are by now, and make all copies anew."""
        self.modules = list(self._module.modules())
        self._copies: dict[nn.Module, Any] = {}
        self._stale = dict.fromkeys(self.modules)
        self._keeps = not any(isinstance(each, torch.jit.ScriptModule) for each in self.modules)
        self._parents: dict[nn.Module, list[nn.Module]] = {}
        for each in self.modules:
            for child in each._modules.values():
                if child is not None:
                    self._parents.setdefault(child, []).append(each)
        self._watched = _Watched(self.modules)
        self._made = _Watched([])
        self.sparse = [
            each.weight for each in self.modules if isinstance(each, (nn.Embedding, nn.EmbeddingBag)) and each.sparse
        ]
        held = {each: [*filter(_is_dense, each._buffers.values())] for each in self.modules}
        self.buffers = {each: tensors for each, tensors in held.items() if tensors}
        # By a name that is the same on all ranks.
        self.tensors: dict[str, torch.Tensor] = {}
        self._slots: dict[str, list[tuple[nn.Module, str, bool]]] = {}  # where a tensor is, and whether as a parameter
        self._targets: dict[str, list[tuple[Any, str]]] = {}  # the copies' dictionaries, and keys in these
        self._aliases: dict[str, torch.Tensor] = {}
        self._trained: dict[str, torch.Tensor] = {}
        self._flags: list[bool] = []  # of `tensors`: whether they are trained
        self._given: Mapping[str, torch.Tensor] | None = None  # in the latest forward
        names: dict[int, str] = {}
        for index, each in enumerate(self.modules):
            for kind in ("_parameters", "_buffers"):
                for key, tensor in getattr(each, kind).items():
                    if tensor is not None:
                        name = names.setdefault(id(tensor), f"{index}.{key}")
                        self.tensors[name] = tensor
                        self._slots.setdefault(name, []).append((each, key, kind == "_parameters"))

    def looks_changed(self) -> bool:
        """Whether modules, parameters or buffers were added, removed or replaced; what else was is noted."""
        if not self._keeps:
            return True
        changed = self._watched.changed()
        if changed:
            self._watched.note()
        self._stale.update(dict.fromkeys(changed))
        return any(changed.values())

    def trained(self) -> dict[str, torch.Tensor]:
        """Those of `tensors` that require a gradient; the same dictionary as long as it is the same ones."""
        flags = list(map(_REQUIRES_GRAD, self.tensors.values()))
        if flags != self._flags:
            self._flags, self._trained = flags, dict(compress(self.tensors.items(), flags))
        return self._trained

    def own(self, trained: Mapping[str, torch.Tensor]) -> nn.Module:
        """This rank's copy of the module, which has what is `trained` in place of tensors that require a gradient."""
        fresh = self._with_parents(self._stale)
        if fresh:
            self._make(fresh)
        is_given = not fresh and trained is self._given
        self._given = trained
        for name in self._aliases if is_given else self.tensors:
            tensor = trained[name] if name in trained else self._stand_in(name)
            for target, key in self._targets[name]:
                if isinstance(target, dict):  # torch 2.1 has ordered ones
                    target[key] = tensor
                else:
                    setattr(target, key, tensor)
        if self._aliases or not is_given:
            self._made.note()
        made: nn.Module = self._copies[self._module]
        return made

    def _make(self, fresh: Sequence[nn.Module]) -> None:
        """Make copies of modules anew. `fresh` has whatever they are in, too."""
        self._stale = {}
        for each in fresh:
            self._copies[each] = _shallow(each)
        for each in fresh:
            copy = self._copies[each]
            for key, child in each._modules.items():
                _set_child(copy, key, None if child is None else self._copies[child])
            for key in [key for key, param in each._parameters.items() if param is None]:
                copy._parameters[key] = None
            if hasattr(each, "_orig_mod") and hasattr(each, "_initialize"):
                copy._initialize()  # torch.compile's module keeps its child's call
        self._targets = {name: list(chain(*map(self._where, slots))) for name, slots in self._slots.items()}
        self._made = _Watched([self._copies[each] for each in self.modules] if self._keeps else [])

    def _where(self, slot: tuple[nn.Module, str, bool]) -> list[tuple[Any, str]]:
        """Where a copy has a tensor: in a dictionary, as `setattr` puts it there; or what to call `setattr` on."""
        module, key, is_param = slot
        copy = self._copies[module]
        former = [(copy.__dict__[_FORMER], key)] if is_param and _FORMER in copy.__dict__ else []
        if not torch.is_grad_enabled() or vars(nn.Module)["__setattr__"] is not type(copy).__setattr__:
            return [(copy, key), *former]  # RNNs hold their weights in a list, too
        return [(copy.__dict__ if is_param else copy._buffers, key), *former]

    def let_go(self) -> None:
        """After a forward: what it has changed stays with its graph, and gets other copies for the next one."""
        changed = self._made.changed()
        if changed:
            self._stale.update((each, None) for each, copy in self._copies.items() if copy in changed)
            self._made = _Watched([])
            for each in self._with_parents(self._stale):
                del self._copies[each]

    def _stand_in(self, name: str) -> torch.Tensor:
        """What the copy has for a parameter or buffer that gets no gradient.

        Rank 0 has the very memory of the module's, as the replica on `nn.DataParallel`'s first device has: what is
        written into it stays. On other ranks it doesn't, and must be what it was when backward needs it: the script's
        own classes get a copy. Without grad the first replica has the parameters themselves.
        """
        tensor, grad = self.tensors[name], torch.is_grad_enabled()
        is_param = any(is_param for *_, is_param in self._slots[name])
        is_scripts = any(not type(module).__module__.startswith("torch.") for module, *_ in self._slots[name])
        if is_scripts and grad and not world.is_main():
            self._aliases[name] = tensor.detach().clone()
        elif not is_param or (world.is_main() and not grad):
            return tensor
        elif name not in self._aliases or self._aliases[name].data_ptr() != tensor.data_ptr():
            self._aliases[name] = tensor.detach()
        return self._aliases[name]

    def _with_parents(self, modules: Iterable[nn.Module]) -> list[nn.Module]:
        """These, and all that they are in."""
        found = dict.fromkeys(modules)
        for each in (pending := list(found)):
            for parent in self._parents.get(each, ()):
                if parent not in found:
                    found[parent] = None
                    pending.append(parent)
        return list(found)


class _Watched:
    """Modules of which it is asked whether somebody has assigned to them: by the identity of all that they hold."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self.note()

    def note(self) -> None:
        """Remember what they hold."""
        if not hasattr(self, "_views"):
            self._views = [view for each in self._modules for view in _views(each)]
        self._held = list(chain.from_iterable(self._views))
        self._sizes = list(map(len, self._views))

    def changed(self) -> dict[nn.Module, bool]:
        """Those that hold something else by now, and whether that is a module, a parameter or a buffer."""
        if self._sizes == list(map(len, self._views)) and all(map(is_, chain.from_iterable(self._views), self._held)):
            return {}
        del self._views  # a dictionary may be another one, too
        found, held, sizes = {}, iter(self._held), iter(self._sizes)
        for each in self._modules:
            differs = [not identical(view, list(islice(held, next(sizes)))) for view in _views(each)]
            if any(differs):
                found[each] = any(differs[1:])
        return found


def _is_dense(buffer: torch.Tensor | None) -> bool:
    return buffer is not None and buffer.layout == torch.strided


def _views(module: nn.Module) -> list[Any]:
    """What a module holds: its attributes, modules, parameters and buffers; as they are whenever they are looked at."""
    held = module.__dict__
    return [held.values(), *(held[part].values() for part in _PARTS)]


def _shallow(module: nn.Module) -> Any:
    """`Module._replicate_for_data_parallel`, without `__setattr__` for each of its lines."""
    if isinstance(module, LazyModuleMixin) or (
        type(module)._replicate_for_data_parallel is not nn.Module._replicate_for_data_parallel
    ):
        return module._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    copy: Any = module.__new__(type(module))
    held = {**module.__dict__, "_parameters": {}, "_is_replica": True, _FORMER: {}}
    held.update(_buffers=module._buffers.copy(), _modules=module._modules.copy())
    object.__setattr__(copy, "__dict__", held)
    return copy


def _set_child(copy: Any, key: str, child: Any) -> None:
    if isinstance(copy, torch.jit.ScriptModule):
        setattr(copy, key, child)
    else:
        copy._modules[key] = child
