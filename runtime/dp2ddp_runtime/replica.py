"""What makes a module one of N replicas: rank 0's parameters and buffers on every rank, and averaged gradients."""

from __future__ import annotations

import copy
import hashlib
import weakref
from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo

from . import collectives, world
from .exchange import Divergence, exchange
from .inputs import checksum
from .reducer import Reducer

# By module, so one that is unwrapped and wrapped again isn't averaged twice. The parts of a model share its root's.
_reducers: MutableMapping[nn.Module, Reducer] = weakref.WeakKeyDictionary()


class Replica:
    """A wrapped module's parameters and buffers, and the parameters of the model that it is a part of.

    Scripts add and replace layers behind the wrap, so each forward looks what there is by now.

    Args:
        module: the module.
        root: the model of which it is, or becomes, a part.

    Attributes:
        device_ids: the indices of all ranks' CUDA devices.

    Raises:
        Divergence: the ranks' models differ in names, shapes or dtypes.
    """

    def __init__(self, module: nn.Module, root: nn.Module | None) -> None:
        self.device_ids = [world.numbered_device().index] if world.device().type == "cuda" else []
        self._module = module
        self._root = None if root is None else weakref.ref(root)
        self._joined: dict[int, nn.Parameter] = {}  # what has rank 0's values, by id
        self._checked = False
        if world.world_size() > 1:
            self._join(module if root is None else nn.ModuleList([root, module]))

    def _join(self, model: nn.Module) -> None:
        """Check that all ranks have the same model, and take rank 0's values where they weren't taken before."""
        new = {name: param for name, param in model.named_parameters() if id(param) not in self._joined}
        self._joined = {id(param): param for param in model.parameters()}
        tensors = {**new, **dict(model.named_buffers())}
        shapes = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors.items()]
        digest = hashlib.sha256(repr(shapes).encode()).hexdigest()
        told = exchange("ddp.wrap_model", [digest, self.device_ids])
        if any(theirs != digest for theirs, _ in told):
            raise Divergence("the ranks' models differ in the names, shapes or dtypes of parameters or buffers")
        self.device_ids = list(dict.fromkeys(index for _, ids in told for index in ids))
        collectives.broadcast_coalesced(list(tensors.values()))

    def __deepcopy__(self, memo: dict[int, Any]) -> Replica:
        new = copy.copy(self)
        new._module = copy.deepcopy(self._module, memo)
        new._joined = {id(param): param for param in new._module.parameters()}
        root = memo.get(id(self._root())) if self._root is not None else None
        new._root = None if root is None else weakref.ref(root)
        return new

    @_disable_dynamo
    def reducer(self, modules: Sequence[nn.Module] | None = None) -> Reducer:
        """What averages the gradients of all parameters that there are by now. A collective if some are new.

        Args:
            modules: the module's, itself included, for who has them: to walk through a deep model takes long.
        """
        whole = self._whole()
        if modules is None or whole is not self._module:
            modules = list(whole.modules())
        found = dict.fromkeys(param for inner in modules for param in inner._parameters.values())
        params = [param for param in found if param is not None]
        embeddings: Any = [inner for inner in modules if isinstance(inner, (nn.Embedding, nn.EmbeddingBag))]
        sparse = [inner.weight for inner in embeddings if inner.sparse]
        if any(id(param) not in self._joined for param in params):
            self._join(whole)
        if not self._checked and self._module.training:
            self._checked = True
            _check_equal(whole)
        if whole is not self._module:
            self.close()  # the root's does it from now on
        if whole in _reducers:
            _reducers[whole].refresh(params, sparse)
        else:
            _reducers[whole] = Reducer(params, sparse)
        return _reducers[whole]

    def _whole(self) -> nn.Module:
        """The model whose gradients are averaged together: the root, as soon as the module is in it."""
        root = self._root() if self._root is not None else None
        return root if root is not None and any(inner is self._module for inner in root.modules()) else self._module

    def close(self) -> None:
        """Average the module's gradients no more."""
        reducer = _reducers.pop(self._module, None)
        if reducer is not None:
            reducer.close()

    @_disable_dynamo
    def agree_on_buffers(self, modules: Sequence[nn.Module]) -> None:
        """After a forward that trains, all ranks take rank 0's buffers: `nn.DataParallel` keeps its first replica's."""
        holders = [inner for inner in modules if inner._buffers]
        if any(inner.training for inner in holders):
            found = [buffer for inner in holders for buffer in inner._buffers.values() if buffer is not None]
            collectives.broadcast_coalesced(found)


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
