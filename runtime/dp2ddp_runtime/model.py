"""The wrapped model: `nn.DataParallel`'s replicas, one on each rank."""

from __future__ import annotations

import contextlib
import copy
import copyreg
import hashlib
import warnings
import weakref
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NoReturn

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.nn.parallel import DistributedDataParallel

from . import collectives, nesting, rng, shards, world
from .deferred import Deferred
from .exchange import Divergence, exchange
from .inputs import Inputs, checksum
from .outputs import gather_outputs
from .reducer import Reducer
from .side_effects import SideEffects
from .state_dict import fit_prefix


def wrap_model(
    module: nn.Module,
    gather: bool = False,
    dim: int = 0,
    sync_bn: bool = False,
    find_unused_parameters: bool | None = None,
    root: Any = None,
) -> WrappedModel:
    """Wrap a model for training on all ranks, as `nn.DataParallel` wraps it for all devices. A collective.

    The module moves to this rank's device and takes rank 0's parameters and buffers.

    Args:
        module: the model. One that is wrapped already is returned as it is; of an `nn.DataParallel` its `.module`.
        gather: every rank passes the whole batch and gets the outputs for the whole batch, as with `nn.DataParallel`;
            otherwise its shard, and the outputs for that.
        dim: the dimension along which inputs are split and outputs concatenated.
        sync_bn: turn BatchNorm layers into `SyncBatchNorm` (CUDA only). By default each rank normalises with its own
            chunk's statistics, and the running statistics are rank 0's, as with `nn.DataParallel`.
        find_unused_parameters: accepted because `DistributedDataParallel` has it. Parameters that get no gradient are
            always allowed, at no cost.
        root: the model of which the module is a part, or becomes one: `model.features = wrap_model(model.features,
            gather=True, root=model)`. The root runs on whole batches on every rank, and its own parameters are kept
            equal along with the part's; it may get more of them later. What is no `nn.Module` is no root.

    Raises:
        TypeError: `module` is no `nn.Module`.
        ValueError: a `root` without `gather=True`.
        RuntimeError: the ranks' models differ in names, shapes or dtypes.
    """
    if isinstance(module, WrappedModel):
        return module
    module = _plain(module)
    root = root.module if isinstance(root, WrappedModel) else root
    root = root if isinstance(root, nn.Module) and root is not module else None
    if root is not None and not gather:
        raise ValueError("a part of a model is wrapped with gather=True: the rest of it takes whole batches")
    if sync_bn:
        module = _with_sync_bn(module)
    return WrappedModel(module, dim=dim, gather=gather, root=root)


def _plain(module: Any) -> nn.Module:
    """The module itself, taken out of a wrapper."""
    if isinstance(module, (nn.DataParallel, WrappedModel)):
        module = module.module
    if not isinstance(module, nn.Module):
        raise TypeError(f"wrap_model takes an nn.Module, not {type(module).__name__}")
    return module


def data_parallel(module: nn.Module, inputs: Any, dim: int = 0, module_kwargs: Mapping[str, Any] | None = None) -> Any:
    """`torch.nn.parallel.data_parallel` over ranks: splits the inputs, runs the module, gathers the outputs.

    The module takes part from its first call on: then it takes rank 0's parameters and buffers, and from then on its
    gradients are averaged. All ranks call it with the same inputs. With a single rank it calls the module.

    Args:
        module: the module; it moves to this rank's device.
        inputs: a tensor, or a tuple of positional arguments.
        dim: the dimension along which inputs are split and outputs concatenated.
        module_kwargs: keyword arguments.

    Returns:
        What the module returns, gathered along `dim`.
    """
    arguments = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    if world.world_size() == 1:
        return module(*arguments, **(module_kwargs or {}))
    wrapped = _called.setdefault(module, {})
    if dim not in wrapped:
        wrapped[dim] = wrap_model(module, gather=True, dim=dim)
    wrapped[dim].training = module.training
    return wrapped[dim](*arguments, **(module_kwargs or {}))


# A module stays here for good, as its wrapped self holds it: scripts make few of them.
_called: MutableMapping[nn.Module, dict[int, WrappedModel]] = weakref.WeakKeyDictionary()


def _with_sync_bn(module: nn.Module) -> nn.Module:
    if world.device().type != "cuda":
        warnings.warn("SyncBatchNorm needs CUDA: BatchNorm stays as it is", stacklevel=3)
        return module
    if world.world_size() == 1:
        return module
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    return converted


# By module, so one that is unwrapped and wrapped again isn't averaged twice. The parts of a model share its root's.
_reducers: MutableMapping[nn.Module, Reducer] = weakref.WeakKeyDictionary()


class WrappedModel(DistributedDataParallel):
    """A model whose replicas train on all ranks. Made by `wrap_model`.

    Or by itself, with `nn.DataParallel`'s arguments, which it takes the place of where a script hands that class on or
    derives from it: then it splits and gathers. `device_ids` and `output_device` mean nothing here: each rank has its
    own device.

    A `DistributedDataParallel` by name and interface (`.module`, keys that begin with `module.`, `no_sync()`), with
    `nn.DataParallel`'s behaviour: it splits its inputs and gathers its outputs if made with `gather=True`, or when
    the batch at hand is whole on every rank. With a single rank it calls the module, and nothing else.
    Pickled, it becomes a plain `nn.DataParallel`, which the unconverted script can load.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        *,
        gather: bool = True,
        root: nn.Module | None = None,
    ) -> None:
        nn.Module.__init__(self)
        module = _plain(module).to(world.device())
        self.dim = dim
        self.device = world.device()
        self.device_ids = [self.device.index] if self.device.type == "cuda" else []
        self.output_device = self.device.index
        self.broadcast_buffers = True
        self.find_unused_parameters = True
        self._gathers = gather
        self._inside = False  # inside another wrapped model, which then does everything
        self._checked = False
        self._inputs = Inputs(dim)
        self._effects = SideEffects()
        self.module = module
        self._root = None if root is None else weakref.ref(root)
        self._covered: weakref.ref[nn.Module] = weakref.ref(module)
        self._joined: dict[int, nn.Parameter] = {}  # what has rank 0's values, by id
        for inner in module.modules():
            if isinstance(inner, WrappedModel):
                inner.step_aside()
        self._all_device_ids = self.device_ids
        world.current().wraps = True
        if world.world_size() > 1:
            self._join(module if root is None else nn.ModuleList([root, module]))
        self._rescan()

    def _join(self, model: nn.Module) -> None:
        """Check that all ranks have the same model, and take rank 0's values where they weren't taken before."""
        new = {name: param for name, param in model.named_parameters() if id(param) not in self._joined}
        self._joined = {id(param): param for param in model.parameters()}
        tensors = {**new, **dict(model.named_buffers())}
        shapes = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors.items()]
        digest = hashlib.sha256(repr(shapes).encode()).hexdigest()
        told = exchange("ddp.wrap_model", note=[digest, self.device.index])
        if any(part.note[0] != digest for part in told):
            raise Divergence("the ranks' models differ in the names, shapes or dtypes of parameters or buffers")
        if self.device.type == "cuda":
            self._all_device_ids = list(dict.fromkeys(part.note[1] for part in told))
        collectives.broadcast_coalesced(list(tensors.values()))

    def step_aside(self) -> None:
        """Leave everything to the wrapped model that this one is now inside of."""
        self._inside = True
        if self._reducer is not None:
            self._reducer.close()

    def _rescan(self) -> None:
        """Look again at which parameters and buffers there are. (Not at each forward: that takes a while.)"""
        whole, reducer = self._whole(), self._reducer
        self._covered = weakref.ref(whole)
        if reducer is not None and reducer is not self._reducer:
            reducer.close()  # the root's does it from now on
        self._params = list(whole.parameters())
        self.device = next((param.device for param in self.module.parameters()), self.device)
        self._sparse: list[Any] = [
            inner.weight
            for inner in whole.modules()
            if isinstance(inner, (nn.Embedding, nn.EmbeddingBag)) and inner.sparse
        ]
        self._buffered = [inner for inner in self.module.modules() if inner._buffers]

    def _whole(self) -> nn.Module:
        """The model whose gradients are averaged together: the root, as soon as this model is in it."""
        root = self._root() if self._root is not None else None
        return root if root is not None and any(inner is self for inner in root.modules()) else self.module

    def _follow_root(self) -> None:
        """Look at each forward what the root has by now: scripts add and replace layers behind the wrap."""
        self._rescan()
        if any(id(param) not in self._joined for param in self._params):
            self._join(self._whole())

    def train(self, mode: bool = True) -> WrappedModel:
        super().train(mode)  # type: ignore[no-untyped-call]
        self._rescan()
        return self

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        result = super()._apply(fn, *args, **kwargs)  # type: ignore[no-untyped-call]
        self._rescan()
        return result

    @_disable_dynamo(recursive=False)
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on this rank's rows.

        Args:
            *args, **kwargs: as the module takes them. With `gather=True`, or in a whole batch, tensors are cut along
                `dim` into `torch.chunk`'s sizes, also inside tuples, lists and dicts.

        Returns:
            What the module returns; gathered along `dim` if the inputs were cut, and scalars then as a vector with
            an entry for each rank that had rows.

        Raises:
            RuntimeError: the parameters differ between ranks (told before the first training step); a model with
                `gather=True` was given a shard; the ranks' outputs have different structures.
        """
        if world.world_size() == 1 or self._inside:
            return self.module(*self._moved(args), **self._moved(kwargs))
        given = list(nesting.batch_tensors((args, kwargs)))
        rows = next((t.size(self.dim) for t in given if t.dim() > self.dim), None)
        batch = shards.at_hand(rows)
        if self._gathers and _is_shard(shards.being_read(rows), rows):
            raise RuntimeError(
                "a model wrapped with gather=True got one rank's shard: pass its loader gather=True, too"
            )
        if self._root is not None:
            self._follow_root()
        self._prepare()
        if self._gathers or (batch is not None and batch.whole) or any(isinstance(each, Deferred) for each in given):
            return self._on_whole_batch(args, kwargs)
        return self._on_shard(self._moved(args), self._moved(kwargs), batch)

    def _moved(self, value: Any) -> Any:
        """`value` with its tensors on this rank's CUDA device, where `nn.DataParallel` puts them, too."""
        if self.device.type != "cuda":
            return value
        return nesting.take_chunk(value, lambda tensor: tensor.to(self.device))

    @property
    def _reducer(self) -> Reducer | None:
        covered = self._covered()
        return None if covered is None else _reducers.get(covered)

    @_disable_dynamo
    def _prepare(self) -> None:
        if not torch.is_grad_enabled():
            return
        if not self._checked and self.training:
            self._checked = True
            _check_equal(dict(self._whole().named_parameters()))
        if self._reducer is None:
            _reducers[self._whole()] = Reducer(self._params, self._sparse)
        else:
            self._reducer.refresh(self._params, self._sparse)

    def _on_shard(self, args: Any, kwargs: Any, batch: shards.Batch | None) -> Any:
        with rng.forward:
            output = self._run(args, kwargs)
        self._agree_on_buffers()
        if torch.is_grad_enabled():
            if batch is not None and not batch.even:
                # The mean over this shard is a mean over `share` of the batch, where an average of ranks takes 1/N.
                output = _weighted(output, batch.share * world.world_size())
            self._watch(nesting.tensors(output))
        return output

    def _on_whole_batch(self, args: Any, kwargs: Any) -> Any:
        call = self._inputs.cut((args, kwargs), self.device)
        # A rank without rows runs on rank 0's, with their random numbers, so that it goes the same way.
        with rng.forward if world.rank() < call.chunks else rng.Stream(rank=0):
            output = self._run(*call.own)
        self._inputs.check(call)
        self._agree_on_buffers()
        gathered = gather_outputs(output, call.chunks, self.dim, self.device, call.fingerprints)
        self._watch(gathered.own)
        return gathered.value

    @_disable_dynamo(recursive=False)
    def _run(self, args: Any, kwargs: Any) -> Any:
        """Call the module, and keep of what that changes in it what a replica of `nn.DataParallel` keeps."""
        before = self._effects.begin(self.module)
        try:
            output = _call(self.module, args, kwargs)
        finally:
            self._effects.undo(before)
        self._effects.agree(self.module, before)
        return output

    @_disable_dynamo
    def _agree_on_buffers(self) -> None:
        if any(inner.training for inner in self._buffered):
            found = [buffer for inner in self._buffered for buffer in inner._buffers.values() if buffer is not None]
            collectives.broadcast_coalesced(found)

    def _watch(self, tensors: list[torch.Tensor]) -> None:
        if self._reducer is not None and torch.is_grad_enabled():
            self._reducer.watch(tensors)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As `nn.Module.load_state_dict`; the keys may also lack their `module.`."""
        return super().load_state_dict(fit_prefix(state_dict, self.state_dict().keys()), *args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Inside another model, too, the keys may lack their `module.`."""
        own = {key[len(prefix) :]: value for key, value in state_dict.items() if key.startswith(prefix)}
        fitted = fit_prefix(own, self.state_dict().keys())
        if fitted is not own:
            for key in own:
                del state_dict[prefix + key]
            state_dict.update({prefix + key: value for key, value in fitted.items()})
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside leave the gradients unaveraged; the next one outside averages what has piled up."""
        if self._reducer is None and world.world_size() > 1 and not self._inside:
            _reducers[self._whole()] = Reducer(self._params, self._sparse)
        reducer = self._reducer
        if reducer is None:
            yield
            return
        before, reducer.enabled = reducer.enabled, False
        try:
            yield
        finally:
            reducer.enabled = before

    def __deepcopy__(self, memo: dict[int, Any]) -> WrappedModel:
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        made_anew = ("_inputs", "_params", "_sparse", "_buffered", "_joined", "_root", "_covered")
        for name, value in self.__dict__.items():
            if name not in made_anew:
                new.__dict__[name] = copy.deepcopy(value, memo)
        new._inputs = Inputs(self.dim)
        new._root, new._covered = None, weakref.ref(new.module)
        new._rescan()
        new._joined = {id(param): param for param in new._params}
        root = self._root() if self._root is not None else None
        if root is not None and id(root) in memo:
            new._root = weakref.ref(memo[id(root)])  # not looked into yet: it isn't complete
        return new

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        plain = nn.DataParallel.__new__(nn.DataParallel)
        nn.Module.__init__(plain)
        base = {name: self.__dict__[name] for name in plain.__dict__ if name in self.__dict__}
        ids = self._all_device_ids
        state = {**base, "dim": self.dim, "device_ids": ids}
        if ids:
            state.update(output_device=ids[0], src_device_obj=torch.device("cuda", ids[0]))
        return copyreg._reconstructor, (nn.DataParallel, object, None), state  # type: ignore[attr-defined]

    def join(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("join", "all ranks have the same number of steps here")

    def register_comm_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("register_comm_hook", "gradients are averaged as they are")

    def _register_builtin_comm_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("_register_builtin_comm_hook", "gradients are averaged as they are")

    def _register_fused_optim(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("_register_fused_optim", "call the optimizer's step yourself")

    def _set_static_graph(self) -> NoReturn:
        _refuse("_set_static_graph", "no graph needs to be static here")


def _call(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A function of its own, for torch.compile looks at it, and not at what calls it."""
    return module(*args, **kwargs)


# As the original prints itself, and as scripts write it into checkpoints and file names.
WrappedModel.__name__ = nn.DataParallel.__name__


def _is_shard(batch: shards.Batch | None, rows: int | None) -> bool:
    return batch is not None and not batch.whole and batch.rows == rows


def _refuse(method: str, instead: str) -> NoReturn:
    raise NotImplementedError(f"a model wrapped by dp2ddp_runtime has no {method}(): {instead}")


def _weighted(output: Any, factor: float) -> Any:
    """`output`, with the gradients that the script sends into it scaled. A scalar is a loss of its own: it stays."""

    def weigh(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.requires_grad or not tensor.dim():
            return tensor
        view = tensor.view_as(tensor)  # its own node: what flows through another output isn't scaled twice
        view.register_hook(lambda grad: grad * factor)  # type: ignore[no-untyped-call]
        return view

    return nesting.map_tensors(weigh, output)


def _check_equal(params: Mapping[str, torch.Tensor]) -> None:
    """Raise if the parameters aren't the same, bit for bit, on all ranks."""
    sums = torch.stack([checksum(param) for param in params.values()] or [torch.zeros(2, dtype=torch.int64)])
    parts = [part.tensors[0].tolist() for part in exchange("the first training step", [sums.cpu()])]
    for index, name in enumerate(params):
        if any(part[index] != parts[0][index] for part in parts):
            raise Divergence(
                f"parameter {name!r} differs between ranks before the first training step: something changed it on "
                "some ranks only (an initialisation with a rank's own random numbers, a checkpoint loaded on one rank)"
            )
