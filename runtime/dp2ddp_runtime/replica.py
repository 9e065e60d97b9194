"""This rank's replica of a module: shallow copies, whose parameters are `gradients.Copies`.

As in https://github.com/pytorch/pytorch/blob/main/torch/nn/parallel/replicate.py, but `parameters()` are there, and
what a forward assigns in the script's own classes stays, as on one GPU. What calls the modules anew in a backward
(reentrant checkpoints) calls the copies. Meanwhile the module itself has their parameters, too: for closures, compiled
methods and scripted modules, which know no other.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter, is_, is_not
from typing import Any, NamedTuple

import torch
from torch import nn

from . import place
from .buffers import Buffers
from .cutting import Source
from .gradients import ALONE, Copies, Copy
from .synced import synced_class, takes_all_rows
from .world import Divergence, broadcast_, exchange

_PARTS = ("_parameters", "_buffers", "_modules")
_CONTAINERS = (list, tuple, dict, set)
_LEVELS = 3  # of containers in which modules are looked for
_REQUIRES_GRAD = attrgetter("requires_grad")


class Assigned(NamedTuple):
    """What a forward has assigned to an attribute or a buffer.

    Attributes:
        key: the same on all ranks.
        holder: the module's own attributes.
        value: what it was given.
    """

    key: str
    holder: dict[str, Any]
    name: str
    value: Any


class Part:
    """One of the modules, and its copy.

    Args:
        module: the original, of which nothing but its attributes are held: it is free to go.
        copy: the replica's.
    """

    def __init__(self, module: nn.Module, copy: Any) -> None:
        self.held: dict[str, Any] = module.__dict__
        self.copy = copy
        # What torch's own layers assign is for their forward alone.
        self.keeps = not type(module).__module__.startswith("torch.")
        self.fixed: dict[str, Any] = {}  # attributes that the copy has in place of the module's
        self.watched: list[tuple[str, Any]] = []  # the module's, from which these were made
        self.computed: list[tuple[str, Any]] = []  # those that hold trained tensors
        self.children = {name: None if child is None else id(child) for name, child in module._modules.items()}
        self.own: dict[str, Any] = {}  # parameters
        self.buffers: dict[str, Any] = {}  # as the copy is given them
        self.before: list[Any] = []  # the attributes ahead of a forward: the copy's; of what is torch's, the module's

    def is_as_before(self) -> bool:
        """Whether the module has the attributes of which the copy was made."""
        return len(self.held) == len(self.before) and all(map(is_, self.held.values(), self.before))


class Replica:
    """A module's copies, kept as long as it consists of the same parts.

    Args:
        module: the original, which is free to go.
        syncs: which BatchNorm layers take the statistics of all ranks' rows (`synced.takes_all_rows`).
    """

    def __init__(self, module: nn.Module, syncs: str = "") -> None:
        self._module = weakref.ref(module)
        self.syncs = syncs
        self._views: list[Any] = []
        self._joined: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()  # by id
        self._given: Any = None
        self._swapped: list[tuple[Any, Any]] = []
        self._locals: dict[tuple[int, str], tuple[Any, Any]] = {}
        self.copies = Copies()
        self.sources: list[Source] = []  # of outputs, beside the copies: buffers with a graph
        self.buffers = Buffers([])
        self.parts: list[Part] = []
        self.tensors: list[torch.Tensor] = []  # parameters, and other leaves that are trained
        self.ids: frozenset[int] = frozenset()  # theirs

    def lists(self) -> dict[str, int]:
        """The lengths of the lists that the script's own modules hold, by name."""
        own = [(type(part.copy).__name__, part.held) for part in self.parts if part.keeps]
        return {f"{kind}.{name}": len(v) for kind, held in own for name, v in held.items() if isinstance(v, list)}

    # ---- what there is -----------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Take rank 0's numbers of what is new: nothing, if nothing is. A collective if there is."""
        if self._is_known():
            return
        self._look()
        module: Any = self._module()
        tensors = [*self.tensors, *module.buffers()]
        new = [each for each in tensors if self._joined.get(id(each)) is not each and each.is_leaf]
        if not new:
            return
        shapes = [[list(each.shape), str(each.dtype)] for each in new]
        told = exchange("a model's parameters and buffers", [list(module.state_dict(keep_vars=True)), shapes])
        if any(each.value != told[0].value for each in told):
            raise Divergence(
                f"the ranks' models at {place.line()} differ in the names, shapes or dtypes of parameters or buffers: "
                "build the same model on every rank"
            )
        broadcast_([each for each in new if not each.is_meta])
        self._joined.update((id(each), each) for each in new)

    def _is_known(self) -> bool:
        """Whether it consists of the same modules, parameters and held ones, by identity."""
        if not self._views or self._sizes != list(map(len, self._views)):
            return False
        if not all(map(is_, chain.from_iterable(self._values), self._known)):
            return False
        return all(part.held.get(name) is value for part in self._watching for name, value in part.watched)

    def _look(self) -> None:
        """See what there is by now."""
        root: Any = self._module()
        modules = _modules_of(root)
        scripted = [each for each in modules if isinstance(each, torch.jit.ScriptModule)]
        plain = [each for each in modules if not isinstance(each, torch.jit.ScriptModule)]
        for each in plain:
            if isinstance(each, nn.modules.lazy.LazyModuleMixin) and each.has_uninitialized_params():
                raise RuntimeError(
                    f"{place.line()} wraps a model with uninitialized parameters ({type(each).__name__}): run it once "
                    "on a batch before it is wrapped"
                )
        copies: dict[int, Any] = {}
        for each in plain:
            kind: Any = type(each)
            is_synced = takes_all_rows(each, self.syncs)
            copies[id(each)] = kind.__new__(synced_class(kind) if is_synced else kind)
        copies.update((id(each), each) for each in scripted)
        self._back = {id(copies[id(each)]): weakref.ref(each) for each in plain}
        self.parts = [Part(each, copies[id(each)]) for each in plain]
        self._root = copies[id(root)]
        self._scripted = [
            (inner, name, param)
            for each in scripted
            for inner in each.modules()
            for name, param in inner.named_parameters(recurse=False)
        ]
        leaves: dict[int, torch.Tensor] = {}
        for part in self.parts:
            part.children = {name: None if key is None else copies.get(key) for name, key in part.children.items()}
            leaves.update((id(each), each) for each in part.held["_parameters"].values() if each is not None)
            for name, value in part.held.items():
                if name not in _PARTS:
                    self._look_into(part, name, value, copies, leaves)
            part.fixed["_is_replica"] = True
            if part.held.get("_compiled_call_impl") is not None:
                part.fixed["_compiled_call_impl"] = None
                place.warn(
                    f"a part ({type(part.copy).__name__}) of the model that {place.line()} calls was compiled in place "
                    "(`.compile()`): it runs uncompiled. Write torch.compile(module) around what is wrapped instead"
                )
        leaves.update((id(param), param) for _, _, param in self._scripted)
        self.tensors = list(leaves.values())
        self.ids = frozenset(leaves)
        self._held = self.ids.difference(map(id, root.parameters()))
        self.sparse = {
            id(each.weight) for each in plain if isinstance(each, (nn.Embedding, nn.EmbeddingBag)) and each.sparse
        }
        self._watching = [part for part in self.parts if part.watched]
        self.buffers = Buffers([part.held["_buffers"] for part in self.parts])
        self._values = [part.held[name].values() for part in self.parts for name in ("_parameters", "_modules")]
        self._views = [*self._values, *(part.held for part in self.parts)]
        self._known = list(chain.from_iterable(self._values))
        self._sizes = list(map(len, self._views))
        self._given = None
        self._by_holder = {id(part.held): part for part in self.parts}
        for part in self.parts:
            if "_orig_mod" in part.children:
                self._compile(part)

    def _look_into(self, part: Part, name: str, value: Any, copies: dict[int, Any], leaves: dict[int, Any]) -> None:
        """What an attribute holds beside the registered: modules, their methods, tensors that are trained."""
        found = list(_within(value))
        trained = [each for each in found if _is_trained(each)]
        if any(copies.get(id(each), each) is not each for each in map(_module_of, found)):
            part.fixed[name] = _exchanged(value, copies)
            part.watched.append((name, value))
        if trained:
            leaves.update((id(each), each) for each in trained)
            part.computed.append((name, part.fixed.get(name, value)))
            part.watched.append((name, value))

    @staticmethod
    def _compile(part: Part) -> None:
        """`torch.compile`'s module keeps its child's call, which is to be the copy's."""
        vars(part.copy).update({**part.held, **part.fixed, "_modules": dict(part.children)})
        if hasattr(part.copy, "_initialize"):
            part.copy._initialize()
            part.fixed["forward"] = vars(part.copy)["forward"]

    # ---- a forward ---------------------------------------------------------------------------------------------------

    def begin(self) -> nn.Module:
        """This rank's copy of the module, as that is now. Until `end` the module itself has the copies' parameters.

        Without gradients, too: a checkpoint may run the copies anew for an earlier forward.
        """
        with torch.inference_mode(False), torch.enable_grad():
            own = self.copies.of(list(filter(_REQUIRES_GRAD, self.tensors)), self.sparse, self._held)
        is_given = own is self._given
        self._given = own
        self.sources = []
        for part in self.parts:
            held = part.held
            if not is_given:
                part.own = {name: own.get(id(each), each) for name, each in held["_parameters"].items()}
                for name, value in part.computed:
                    part.fixed[name] = _exchanged(value, own)
            elif not part.keeps and part.is_as_before():
                continue  # most of the modules of a deep model, of which each takes some microseconds
            new = held.copy()
            new.update(part.fixed)
            new["_modules"] = part.children.copy()
            new["_buffers"] = self._with_gradients(held["_buffers"]) if part.keeps else held["_buffers"]
            part.buffers = new["_buffers"].copy()
            new["_parameters"] = part.own.copy()
            object.__setattr__(part.copy, "__dict__", new)
            part.before = list(held.values())
        for (holder, name), (shown, value) in self._locals.items():
            if holder in self._by_holder and self._by_holder[holder].held.get(name) is shown:
                self._by_holder[holder].copy.__dict__[name] = value
        for part in self.parts:
            if part.keeps:
                part.before = list(part.copy.__dict__.values())
        self._swap(own)
        return self._root  # type: ignore[no-any-return]

    def _with_gradients(self, buffers: dict[str, Any]) -> dict[str, Any]:
        """Buffers of a copy. What was computed outside of the forward (`net.encode(image)`) is as a parameter is: its
        gradient is the sum of the replicas', as with `replicate`.
        """
        found = buffers.copy()
        for name, each in buffers.items() if torch.is_grad_enabled() else ():
            if each is not None and each.requires_grad:
                anchor, found[name] = Copy.apply(ALONE, None, each)
                self.sources.append(Source({found[name].grad_fn}, [anchor]))
        return found

    def _swap(self, own: dict[int, torch.Tensor]) -> None:
        if not own:
            return
        for part in self.parts:
            if part.own:
                self._swapped.append((part.held, part.held["_parameters"]))
                part.held["_parameters"] = part.own
        for module, name, param in self._scripted:
            if id(param) in own:
                module._c.setattr(name, own[id(param)])  # type: ignore[operator,union-attr]

    def end(self) -> None:
        """After the forward, also one that failed: the module has its own parameters again."""
        for held, params in self._swapped:
            held["_parameters"] = params
        self._swapped.clear()
        for module, name, param in self._scripted:
            module._c.setattr(name, param)  # type: ignore[operator,union-attr]

    def assigned(self) -> list[Assigned]:
        """What the forward has assigned in the script's own classes. Modules and parameters are there already."""
        found = []
        for index, part in enumerate(self.parts):
            if not part.keeps:
                continue
            now = part.copy.__dict__
            if len(now) != len(part.before) or not all(map(is_, now.values(), part.before)):
                before = dict(zip(now, part.before))  # keys that were there keep their places
                originals = {key: original() for key, original in self._back.items()}
                for name, value in now.items():
                    if name not in _PARTS and value is not before.get(name, self):
                        found.append(Assigned(f"{index}.{name}", part.held, name, _exchanged(value, originals)))
            for name, value in now["_buffers"].items():
                if value is not part.buffers.get(name, self):
                    part.held["_buffers"][name] = value if value is None else value.detach()
            for kind, known in (("_modules", part.children), ("_parameters", part.own)):
                if len(now[kind]) != len(known):  # layers and parameters that the forward has made
                    part.held[kind].update((name, value) for name, value in now[kind].items() if name not in known)
        return found

    def keep(self, each: Assigned, shown: Any, local: Any) -> None:
        """Let the module have what was `assigned`: the script sees one value, and the next forward has its own."""
        each.holder[each.name] = shown
        if shown is local:
            self._locals.pop((id(each.holder), each.name), None)
        else:
            self._locals[id(each.holder), each.name] = shown, local

    @property
    def trains(self) -> bool:
        """Whether any module with buffers is in training mode."""
        return any(part.held["training"] for part in self.parts if part.held["_buffers"])


def _modules_of(root: nn.Module) -> list[nn.Module]:
    """All modules that the root has or holds, in an order that is the same on every rank."""
    found: dict[int, nn.Module] = {}
    todo = [root]
    while todo:
        module = todo.pop()
        if id(module) in found:
            continue
        found[id(module)] = module
        if isinstance(module, torch.jit.ScriptModule):
            continue
        held = [value for name, value in module.__dict__.items() if name not in _PARTS]
        beside = [_module_of(each) for value in held for each in _within(value)]
        todo += [each for each in (*beside, *reversed([*module._modules.values()])) if each is not None]
    return list(found.values())


def _module_of(value: Any) -> nn.Module | None:
    value = value.__self__ if isinstance(value, types.MethodType) else value
    return value if isinstance(value, nn.Module) else None


def _within(value: Any, levels: int = _LEVELS) -> Iterator[Any]:
    """A value, or what is in its containers."""
    if type(value) in _CONTAINERS and levels:
        for each in list(value.values() if isinstance(value, dict) else value):
            if not isinstance(each, (str, int, float)):
                yield from _within(each, levels - 1)
    else:
        yield value


def _is_trained(value: Any) -> bool:
    is_leaf = isinstance(value, torch.Tensor) and value.is_leaf
    return is_leaf and (value.requires_grad or isinstance(value, nn.Parameter))  # one may be trained later


def _exchanged(value: Any, others: dict[int, Any], levels: int = _LEVELS) -> Any:
    """`value` with others in place of what they stand for, by id; itself where there is nothing to exchange."""
    if isinstance(value, (nn.Module, torch.Tensor)):
        return others.get(id(value), value)
    if isinstance(value, types.MethodType):
        owner = others.get(id(value.__self__))
        return value if owner is None else types.MethodType(value.__func__, owner)
    if type(value) not in _CONTAINERS or not levels:
        return value
    if isinstance(value, dict):
        mapped: Any = {key: _exchanged(each, others, levels - 1) for key, each in value.items()}
        return mapped if any(mapped[key] is not each for key, each in value.items()) else value
    entries = [_exchanged(each, others, levels - 1) for each in value]
    return type(value)(entries) if any(map(is_not, entries, value)) else value
