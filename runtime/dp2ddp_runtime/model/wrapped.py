"""The wrapped model: `nn.DataParallel`'s replicas, one on each rank; its functional form, and its states' keys."""

from __future__ import annotations

import contextlib
import copy
import copyreg
import importlib
import inspect
import itertools
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Callable, NoReturn

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import _StopRecomputationError

from ..base import nesting, world
from ..base.uncompiled import is_traced
from ..batches import fewer
from ..gradients import summing
from ..ranks import group, rng
from .agreement import Agreement
from .copies import Copies
from .replica import Replica
from .scatter_gather import Inputs, Note, gather_outputs
from .shared import Shared, warn_of_changed

_NOTHING: dict[str, torch.Tensor] = {}
_PREFIX = "module."
_CPU = torch.device("cpu")
_LOOKED_AT = 2  # calls: as many find what all do, and to look costs as much as there are modules
# Older torch's `parallel_apply` takes float16 for a single replica, too.
_CASTS_ALONE = hasattr(importlib.import_module("torch.nn.parallel.parallel_apply"), "autocast")


def wrap_model(module: nn.Module, dim: int = 0, sync_bn: bool = False, device_ids: Any = None) -> WrappedModel:
    """Wrap a model for training on all ranks, as `nn.DataParallel` wraps it for all devices. A collective.

    The module takes rank 0's parameters and buffers. It stays where it is, as under `nn.DataParallel`: what the script
    draws before it moves it, it draws there. Its first forward moves it to this rank's device, if nothing else has.
    Every rank passes the whole batch and gets the outputs for the whole batch; it computes those of its rows.

    Args:
        module: the model. One that is wrapped already is returned as it is; of an `nn.DataParallel` its `.module`.
        dim: the dimension along which inputs are split and outputs concatenated.
        sync_bn: turn BatchNorm layers into `SyncBatchNorm` (CUDA only). By default each rank normalises with its own
            chunk's statistics, and the running statistics are rank 0's, as with `nn.DataParallel`. So do layers that
            are `SyncBatchNorm` already: without a process group, as under `nn.DataParallel`, they are BatchNorm.
        device_ids: the devices that the original wraps it for. Each rank has its own one, so their number alone counts:
            ranks that are too many end at the first wrap, unless the user has said how many there shall be. None, or
            empty: all of them.

    Raises:
        TypeError: `module` is no `nn.Module`; with `sync_bn`, one of its BatchNorm layers takes more than its input.
        RuntimeError: the ranks' models differ in names, shapes or dtypes; there are fewer ranks on this machine than
            `device_ids`, or as many as the user has said, and that isn't as many.
    """
    if isinstance(module, WrappedModel):
        return module
    module = _plain(module)
    return WrappedModel(_with_sync_bn(module, sync_bn), device_ids, dim=dim)


def _plain(module: Any) -> nn.Module:
    """The module itself, taken out of a wrapper."""
    if isinstance(module, (nn.DataParallel, WrappedModel)):
        module = module.module
    if not isinstance(module, nn.Module):
        raise TypeError(f"wrap_model takes an nn.Module, not {type(module).__name__}")
    return module


def _with_sync_bn(module: nn.Module, wanted: bool) -> nn.Module:
    """The module with `SyncBatchNorm` layers that synchronise if that is `wanted`, and else don't."""
    if wanted:
        _refuse_more_than_input(module)
    if wanted and world.device().type != "cuda":
        warnings.warn("SyncBatchNorm needs CUDA: BatchNorm stays as it is", stacklevel=3)
        wanted = False
    if wanted and world.world_size() > 1:
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
        _sync_batch_norm.forward = _forward_shown
    layers: list[Any] = [layer for layer in module.modules() if isinstance(layer, nn.SyncBatchNorm)]
    for layer in layers:
        layer.synchronises = wanted
    return module


def _refuse_more_than_input(module: nn.Module) -> None:
    """On every device, so that it is found before there are GPUs."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and len(inspect.signature(layer.forward).parameters) > 1:
            raise TypeError(
                f"sync_bn=True can't take the place of {name or 'the model'} ({type(layer).__name__}): its forward "
                "takes more than its input, and SyncBatchNorm's doesn't; wrap the model without sync_bn"
            )


# Its method is exchanged, and not the layers, so that these print, save and pickle themselves as in the original.
_sync_batch_norm: Any = nn.SyncBatchNorm
_forward_hidden = _sync_batch_norm.forward


def _forward_shown(layer: Any, input: torch.Tensor) -> torch.Tensor:
    """`SyncBatchNorm.forward`, which is BatchNorm's where it finds no process group."""
    with group.shown() if getattr(layer, "synchronises", False) else contextlib.nullcontext():
        normalised: torch.Tensor = _forward_hidden(layer, input)
    return normalised


class WrappedModel(DistributedDataParallel):
    """A model whose replicas train on all ranks. Made by `wrap_model`.

    Or by itself, with `nn.DataParallel`'s arguments, which it takes the place of where a script hands that class on or
    derives from it. Each rank has its own device, so of `device_ids` the number alone counts, and `output_device` means
    nothing.

    A `DistributedDataParallel` by name and interface (`.module`, keys that begin with `module.`, `no_sync()`), with
    `nn.DataParallel`'s behaviour: it splits its inputs and gathers its outputs. With a single rank it calls the module,
    and nothing else.
    Pickled, it becomes a plain `nn.DataParallel`, which the unconverted script can load.
    """

    def __init__(self, module: nn.Module, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        nn.Module.__init__(self)
        self._count = fewer.fit(device_ids)  # of replicas
        module = _plain(module)
        if self._count == 1 and world.device().type == "cuda":  # so does `nn.DataParallel` for a single device
            module = module.to(world.device())
        self.dim = dim
        index = world.numbered_device().index
        self.device_ids = [] if index is None else [index]
        self.output_device = index
        self._inside = False  # inside another wrapped model, which then does everything
        self._inputs = Inputs(dim, self._count)
        self._copies = Copies()
        self._agreement = Agreement()
        self._replicas: dict[bool, Replica] = {}  # by whether gradients are recorded
        self.module = module
        for inner in module.modules():
            if isinstance(inner, WrappedModel):
                inner._inside = True
        if self._count > 1:
            world.current().wraps = True
            world.current().models.add(self)
        if world.world_size() > 1:
            group.for_gradients()
            self._agreement.join(module)

    @property
    def device(self) -> torch.device:
        """Where the module is."""
        kept = itertools.chain(self.module.parameters(), self.module.buffers())
        return next((each.device for each in kept), world.device())

    @_disable_dynamo(recursive=False)
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on this rank's rows.

        Args:
            *args, **kwargs: as the module takes them. Tensors are cut along `dim` into `torch.chunk`'s sizes, also
                inside tuples, lists and dicts.

        Returns:
            What the module returns, gathered along `dim`; scalars as a vector, an entry for each rank that had rows.

        Raises:
            RuntimeError: the parameters differ between ranks (told before the first training step); the ranks'
                outputs have different structures.
        """
        if self._count == 1 or self._inside or is_traced():
            return self.module(*self._moved(args), **self._moved(kwargs))
        if self.device != world.device():
            self.module.to(world.device())
        replica, own = self._replica()
        call = self._inputs.cut((args, kwargs), self.device)
        if torch.is_grad_enabled():
            self._copies.take_turn()
        if call.chunks < world.world_size() and any(getattr(each, "synchronises", False) for each in replica.modules):
            warnings.warn(
                "a batch has fewer rows than there are ranks: with sync_bn=True the first rank's count once more for "
                "each rank that has none; drop_last=True in the loader avoids that",
                stacklevel=2,
            )
        shared = Shared((args, kwargs), self.module.named_modules() if self._inputs.calls <= _LOOKED_AT else ())
        before = self._agreement.begin(self.module, replica.buffers)
        has_rows = world.rank() < call.chunks
        try:
            # A rank without rows runs on rank 0's, with rank 0's first random numbers, so that it goes the same way.
            with rng.forward if has_rows else rng.Stream(rank=0), as_in_a_thread(call.chunks, self.device):
                output = _run(own, *call.own)
        except _StopRecomputationError:  # on all ranks: a checkpoint around, which has what it wanted
            self._agreement.end(self.module, replica.buffers, before)
            raise
        finally:
            replica.let_go()
        self._copies.refuse_written()
        self._agreement.end(self.module, replica.buffers, before)
        if not has_rows:
            self._copies.forget_aside()
        is_outdated = torch.is_grad_enabled() and self._copies.outdated_by_forward()
        note = Note(call.fingerprints, self._copies.has_aside(), is_outdated, shared.changed())
        sources = [self._copies.source, *call.sources]
        gathered, told = gather_outputs(output, call.chunks, self.dim, self.device, sources, note)
        warn_of_changed([each.changed for each in told[: call.chunks]])
        if any(each.has_aside for each in told):
            self._copies.add_up_aside()
        if any(each.is_outdated for each in told):
            self._copies.outdate()
        return gathered

    @_disable_dynamo
    def _replica(self) -> tuple[Replica, nn.Module]:
        """This rank's replica of the module as it is by now, and its copy of the module itself."""
        summing.forget_failed()
        grad = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        replica = self._replicas.setdefault(grad, Replica(self.module))
        if replica.looks_changed():
            replica.look_again()
            self._agreement.join_new(self.module)
        if not grad:
            return replica, replica.own(_NOTHING)
        return replica, replica.own(self._copies.of(replica.trained(), replica.sparse))

    def _moved(self, value: Any) -> Any:
        """`value` with its tensors on this rank's device, where `nn.DataParallel` puts them, too."""
        if world.device().type == "cpu":
            return value
        return nesting.take_chunk(value, lambda tensor: tensor.to(self.device))

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
        """Changes nothing: each backward sends its gradients, whose sum is what one backward would send in the end."""
        yield

    def __deepcopy__(self, memo: dict[int, Any]) -> WrappedModel:
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        held = {**self.__dict__, "_replicas": {}}
        new.__dict__.update((name, copy.deepcopy(value, memo)) for name, value in held.items())
        return new

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        plain = nn.DataParallel.__new__(nn.DataParallel)
        nn.Module.__init__(plain)
        base = {name: self.__dict__[name] for name in plain.__dict__ if name in self.__dict__}
        ids = self._agreement.device_ids
        state = {**base, "dim": self.dim, "device_ids": ids}
        if ids:
            state.update(output_device=ids[0], src_device_obj=torch.device("cuda", ids[0]))
        return copyreg._reconstructor, (nn.DataParallel, object, None), state  # type: ignore[attr-defined]

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            "a model wrapped by dp2ddp_runtime sums the gradients as they are: it has no join(), communication hooks, "
            "fused optimizers or static graph"
        )

    join = register_comm_hook = _register_builtin_comm_hook = _register_fused_optim = _set_static_graph = _refuse


def _run(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A function of its own, for torch.compile looks at it, and not at `forward`."""
    return module(*args, **kwargs)


@contextlib.contextmanager
def as_in_a_thread(replicas: int, device: torch.device = _CPU) -> Iterator[None]:
    """While a replica runs: what `nn.DataParallel`'s threads don't know of, where it has several `replicas`.

    A checkpoint around a wrapped model (`use_reentrant=False`) keeps what the replicas keep, and doesn't run them
    again. (torch 2.1 doesn't tell whether there is one.) Autocast is in float16 on CUDA, whatever was asked for:
    https://github.com/pytorch/pytorch/blob/main/torch/nn/parallel/parallel_apply.py
    """
    asks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    with contextlib.ExitStack() as stack:
        if replicas > 1 and asks is not None and asks(False) is not None:
            keep = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
            stack.enter_context(keep)
        if (replicas > 1 or _CASTS_ALONE) and device.type == "cuda" and torch.is_autocast_enabled():
            stack.enter_context(torch.autocast("cuda", torch.float16))
        yield


# As the original prints itself, and as scripts write it into checkpoints and file names.
WrappedModel.__name__ = nn.DataParallel.__name__


# A module stays here for good, as its wrapped self holds it: scripts make few of them.
_wrapped: MutableMapping[nn.Module, dict[int, WrappedModel]] = weakref.WeakKeyDictionary()


def data_parallel(
    module: nn.Module,
    inputs: Any,
    dim: int = 0,
    module_kwargs: Mapping[str, Any] | None = None,
    device_ids: Any = None,
) -> Any:
    """`torch.nn.parallel.data_parallel` over ranks: splits the inputs, runs the module, gathers the outputs along
    `dim`.

    The module takes part from its first call on: then it takes rank 0's parameters and buffers, and from then on
    its gradients are summed over the ranks. All ranks call it with the same inputs. With a single rank it calls the
    module.

    Args:
        module: the module; it moves to this rank's device, if it isn't there.
        inputs: a tensor, or a tuple of positional arguments.
        dim: the dimension along which inputs are split and outputs concatenated.
        module_kwargs: keyword arguments.
        device_ids: as `wrap_model` takes them, at the first call; None for all ranks.
    """
    arguments = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    if world.world_size() == 1:
        return module(*arguments, **(module_kwargs or {}))
    wrapped = _wrapped.setdefault(module, {})
    if dim not in wrapped:
        wrapped[dim] = wrap_model(module, dim=dim, device_ids=device_ids)
    return wrapped[dim](*arguments, **(module_kwargs or {}))


def load_state_dict(model: Any, state: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """`model.load_state_dict(state)`, whether or not the keys of either begin with `module.`.

    Args:
        model: wrapped or plain; or an optimizer, a scheduler, ..., which gets `state` as it is.
        state, *args, **kwargs: as `nn.Module.load_state_dict` takes them, and what is returned.

    Raises:
        RuntimeError: as there, if `state` doesn't fit in either form.

    See https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict.
    """
    if isinstance(model, nn.Module):
        state = fit_prefix(state, model.state_dict())
    return model.load_state_dict(state, *args, **kwargs)


def fit_prefix(state: Mapping[str, Any], expected: Iterable[str]) -> Mapping[str, Any]:
    """`state`, or a copy with or without `module.` before all keys, whichever has the most of the `expected` keys."""
    wanted = set(expected)
    forms = [state, _renamed(state, lambda key: _PREFIX + key)]
    if all(key.startswith(_PREFIX) for key in state):
        forms.append(_renamed(state, lambda key: key[len(_PREFIX) :]))
    return max(forms, key=lambda form: len(wanted.intersection(form)))


def _renamed(state: Mapping[str, Any], rename: Callable[[str], str]) -> Mapping[str, Any]:
    renamed = OrderedDict((rename(key), value) for key, value in state.items())
    versions = getattr(state, "_metadata", None)
    if versions is not None:
        # By module, "" being the model itself: a key with no parameter name after the dot.
        renamed._metadata = {rename(f"{name}." if name else "").rstrip("."): v for name, v in versions.items()}  # type: ignore[attr-defined]
    return renamed
