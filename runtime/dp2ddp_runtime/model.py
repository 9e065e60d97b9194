"""The wrapped model: `nn.DataParallel`'s replicas, one on each rank."""

from __future__ import annotations

import contextlib
import copy
import copyreg
import functools
import sys
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Callable, NamedTuple, NoReturn

import torch
from torch import nn
from torch._C import _is_tracing
from torch._compile import _disable_dynamo
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from . import gpus, place, streams
from .birth import form
from .checks import fingerprints, watch_steps
from .cutting import Call, Cutter, Source
from .gradients import Copy, OuterBackward
from .joining import Joint, Said, is_of_rows, onto_device
from .nesting import chunks, nested
from .replica import Assigned, Replica
from .rows import land, pending
from .synced import refuse_more_than_input, takes_all_rows
from .world import Divergence, broadcast_, exchange, world

__all__ = ["WrappedModel", "chunks", "data_parallel", "load_state_dict", "wrap_model"]

_PREFIX = "module."
#: By module: wrapped again, in each step perhaps, it has what it had.
_replicas: weakref.WeakKeyDictionary[nn.Module, Replica] = weakref.WeakKeyDictionary()


def wrap_model(
    module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0, sync_bn: bool = False
) -> WrappedModel:
    """Wrap a model for training on all ranks, as `nn.DataParallel` wraps it for all devices. A collective.

    At the first wrap for several devices the other ranks are born. The module takes rank 0's parameters and buffers; it
    stays where it is until its first forward, which moves it to this rank's device.

    Args:
        module: the model. One that is wrapped may be wrapped once more, as an `nn.DataParallel` in another.
        device_ids: as `nn.DataParallel` takes them: so many ranks have rows; None for all. For a single one the module
            is called as it is, on every rank alike.
        output_device: means nothing: each rank has the outputs on its device.
        dim: along which inputs are split and outputs put together.
        sync_bn: let BatchNorm layers take the statistics of all ranks' rows. By default each rank normalises with its
            own rows', and the running statistics are rank 0's, as with `nn.DataParallel`.

    Raises:
        TypeError: `module` is no `nn.Module`; with `sync_bn`, a BatchNorm layer has a forward of its own.
        Divergence: the ranks' models differ in names, shapes or dtypes.
        RuntimeError: there are fewer ranks than `device_ids`.
    """
    return WrappedModel(module, device_ids, output_device, dim, sync_bn)


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compiler.disable`, without the compiler being imported for it, which takes a second."""
    disabled = _disable_dynamo(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (disabled if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

    return call


class Part(NamedTuple):
    """A rank's part of the message in which a forward ends; the tensors of outputs, batches, buffers come beside it."""

    seen: Any  # of what the model was given: shapes and sums
    outline: Any  # of the output
    assigned: dict[Any, Any]  # outlines, by key
    sources: Any  # for each tensor that is sent, by what its graph comes
    batches: list[str]  # that are pending
    are_hooked: bool  # the copies of parameters
    buffers: int  # how many tensors of them are sent
    has_moved: bool  # a parameter's memory
    unmended: Any  # fingerprints of what nothing else mends


class WrappedModel(DistributedDataParallel):
    """A model whose replicas train on all ranks. Made by `wrap_model`, or with `nn.DataParallel`'s arguments.

    A `DistributedDataParallel` by name and interface (`.module`, keys that begin with `module.`, `no_sync()`), with
    `nn.DataParallel`'s behaviour: it splits its inputs and gathers its outputs. Alone it calls the module, and nothing
    else. Pickled, it becomes a plain `nn.DataParallel`, which the unconverted script can load.
    """

    def __init__(
        self, module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0, sync_bn: bool = False
    ) -> None:
        nn.Module.__init__(self)
        if not isinstance(module, nn.Module):
            raise TypeError(f"wrap_model takes an nn.Module, not {type(module).__name__}")
        if type(module) is nn.DataParallel:  # out of a checkpoint
            module = WrappedModel(module.module, device_ids, output_device, getattr(module, "dim", 0))
        if sync_bn:
            refuse_more_than_input(module)
        self.count = form(device_ids)
        self.dim, self.syncs = dim, sync_bn
        index = world.device.index if world.device.type == "cuda" else None
        ids = gpus.named(device_ids) or range(self.count)
        self.device_ids = [] if index is None else [*ids][: self.count]
        self.output_device = index
        self.module = module
        self._begin()
        if self.count == 1 and world.device.type == "cuda":  # so does `nn.DataParallel` for a single device
            module.to(world.device)
        if self.count > 1 and not world.alone:
            watch_steps()
            self._replica().join()

    def _begin(self) -> None:
        self._cutter = Cutter(self.dim, self.count)
        self._memory: dict[Any, int] = {}  # by an output's place: how many dimensions it had
        self._calls = 0  # in which several ranks had rows
        self._trained = False  # the forward before
        self._by_rows: set[int] = set()  # places of parameters and buffers that ranks have written otherwise
        if self.count > 1:
            world.models.add(self)

    def _replica(self) -> Replica:
        found = _replicas.get(self.module)
        which = "all" if self.syncs else self._own_syncs()
        if found is None or found.syncs != which:
            found = _replicas[self.module] = Replica(self.module, which)
        return found

    def parameter_ids(self) -> frozenset[int]:
        """The ids of all that is trained in it."""
        found = _replicas.get(self.module)
        return frozenset() if found is None else found.ids

    @property
    def device(self) -> torch.device:
        """Where the module is."""
        return next((each.device for each in chain(self.parameters(), self.buffers())), world.device)

    # ---- a forward ---------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on this rank's rows. A collective.

        Args:
            *args, **kwargs: as the module takes them. See `cutting.Cutter.cut`.

        Returns:
            What the module returns, put together along `dim`; scalars as a vector, an entry for each rank with rows.

        Raises:
            Divergence: what the model is given differs between the ranks.
            ValueError: the ranks' outputs can't be put together.
        """
        if self._runs_as_it_is():
            if world.device.type == "cuda" and self.count == 1 and not OuterBackward.in_forward:
                args, kwargs = nested(onto_device, args), nested(onto_device, kwargs)
            return self.module(*args, **kwargs)
        return self._on_rows(args, kwargs)

    @_uncompiled
    def _runs_as_it_is(self) -> bool:
        """Also where torch makes a graph of what runs now, in which the ranks' meetings have no place."""
        if self.count == 1 or world.alone or OuterBackward.in_forward or "_is_replica" in self.__dict__:
            return True
        modes = _get_current_dispatch_mode_stack()
        return _is_tracing() or any(type(mode) is ProxyTorchDispatchMode for mode in modes)

    @_uncompiled
    def _on_rows(self, args: Any, kwargs: Any) -> Any:
        replica = self._replica()
        if world.device.type == "cuda" and self.device != world.device:
            self.module.to(world.device)
        replica.join()
        if self._trained and not replica.trains:
            # A checkpoint that ran layers again in a backward has left this rank's rows in the statistics.
            self._trained = False
            replica.buffers.take()
        call = self._cutter.cut(args, kwargs)
        lists = replica.lists() if 0 < self._calls < _LISTS_UNTIL else {}
        output = self._run(replica, call)
        self._tell_of_grown(lists, replica.lists() if lists else {})
        # What the rows decide can be seen where several ranks have some.
        self._calls += sum(map(bool, call.sizes)) > 1
        looks = not self._calls & (self._calls - 1)
        if looks:
            self._refuse_written(replica)
        return self._put_together(replica, call, output, looks)

    def _run(self, replica: Replica, call: Call) -> Any:
        """The replica's outputs for this rank's rows. One without any runs on rank 0's, and draws for nothing."""
        has_rows = call.sizes[world.rank] > 0 or not any(call.sizes)
        own = replica.begin()
        OuterBackward.in_forward, Copy.idle = True, not has_rows
        try:
            with streams.forward if has_rows else streams.Stream(rank=0), keeping_saved_tensors():
                return own(*call.args, **call.kwargs)
        except Exception as error:  # noqa: BLE001 - whatever the script has raised
            world.raised = f" (behind {type(error).__name__}: {str(error)[:200]})"
            raise _of_the_script(error)  # noqa: B904 - the error itself
        finally:
            OuterBackward.in_forward, Copy.idle = False, False
            replica.end()

    def _tell_of_grown(self, before: dict[str, int], after: dict[str, int]) -> None:
        """A warning of a list to which a forward appends, not only the first one: replicas share it, ranks can't."""
        for name in [name for name, length in before.items() if after.get(name, 0) > length]:
            self._cutter.warn_once(
                name,
                f"the forward of the model that {place.line()} calls appends to {name}: each rank's list has that "
                "rank's rows alone. Return from the forward what the script reads",
            )

    def _refuse_written(self, replica: Replica) -> None:
        written = replica.copies.written()
        if written is not None:
            name = next((name for name, each in self.module.named_parameters() if each is written), "")
            replica.copies.forget()
            raise RuntimeError(
                f"the wrapped model's forward at {place.line()} writes into its parameter {name!r} while gradients are "
                "recorded: write `with torch.no_grad():` around it, or assign a new tensor"
            )

    def _put_together(self, replica: Replica, call: Call, output: Any, looks: bool) -> Any:
        """The whole outputs, in one message. Buffers, assigned values, and labels that nobody has seen come along."""
        assigned, moved = replica.assigned(), replica.copies.moved()
        said = Said(self.dim, None if call.rows is None else call.own_rows)
        outline = said.outline(output)
        outlines = {each.key: said.outline(each.value) for each in assigned}
        sources = [Source(replica.copies.nodes, replica.copies.anchors), *replica.sources, *call.sources]
        buffers = replica.buffers
        self._trained = replica.trains
        batches, flats = pending(), buffers.small() if replica.trains else []
        unmended = self._unmended(replica) if looks else {}
        part = Part(
            call.seen,
            outline,
            outlines,
            said.described(sources),
            [each._number for each in batches],
            replica.copies.are_hooked(),
            len(flats),
            bool(moved),
            fingerprints(list(unmended.values())),
        )
        sent: list[Any] = [each.sent for each in batches]
        told = exchange("the wrapped model", [*part], [*said.tensors, *sent, *flats])
        parts = [Part(*each.value) for each in told]
        self._compare(each.seen for each in parts)
        land(batches, [(p.batches, t.tensors[len(p.sources) :][: len(p.batches)]) for p, t in zip(parts, told)])
        self._take_moved(replica, moved, [each.has_moved for each in parts])
        if any(each.are_hooked for each in parts):
            replica.copies.forget()
        if replica.trains:  # (nobody sees what `.data` and `F.batch_norm` write; DDP broadcasts all buffers, too)
            buffers.take(told[0].tensors[-1:] if parts[0].buffers else ())
        self._take_written(replica, unmended, [each.unmended for each in parts])
        described = [each.sources for each in parts]
        joint = Joint(call, self.dim, said, told, described, sources, self._memory, self._cutter.warn_once)
        for each in assigned:
            self._keep(replica, joint, each, [theirs.assigned.get(each.key) for theirs in parts], call)
        return joint.value([each.outline for each in parts], output)

    def _compare(self, seen: Iterable[Any]) -> None:
        first, *others = seen
        for rank, other in enumerate(others, 1):
            if other != first:
                pairs = list(zip(first, other))
                found = next((pair for pair in pairs if pair[0] != pair[1]), (len(first), len(other)))
                raise Divergence(
                    f"what the wrapped model at {place.line()} is given differs between the ranks (shape and sum: "
                    f"{found[0]} on rank 0, {found[1]} on rank {rank}). What the script makes itself must be the same "
                    "on all ranks: seed the generator that it comes from, load it by a loader that went through "
                    "ddp.shard_loader, or pass it through ddp.broadcast"
                )

    def _keep(self, replica: Replica, joint: Joint, each: Assigned, outlines: list[Any], call: Call) -> None:
        """Let the module have what its forward has assigned."""
        shown = each.value
        if all(outline is not None for outline in outlines) and outlines != [["?"]] * world.size:
            shown = joint.value(outlines, each.value, (each.key, each.name), assigned=True)
        is_own = is_of_rows(each.value, None if call.rows is None else call.own_rows)
        replica.keep(each, shown, each.value if is_own else shown)

    # ---- what forwards write in place --------------------------------------------------------------------------------

    @staticmethod
    def _unmended(replica: Replica) -> dict[int, torch.Tensor]:
        """By place, what a forward may write as its rows say, and nothing else mends: no trained parameters, nor
        buffers where these become rank 0's anyway.
        """
        tensors = [*replica.tensors, *([] if replica.trains else replica.buffers.now())]
        return {place: each for place, each in enumerate(tensors) if not each.requires_grad and not each.is_meta}

    def _take_moved(self, replica: Replica, moved: list[Any], told: list[bool]) -> None:
        """Parameters to which a forward has given other memory (`weight.data = ...`) have it, as on one GPU."""
        if not any(told):
            return
        if not all(told):
            raise Divergence(
                f"the forward at {place.line()} assigns to the .data of a parameter on some ranks only, "
                "as their rows say: do it behind the forward, or on every rank"
            )
        for original, own in moved:
            original.data = own.data
        replica.copies.forget()

    def _take_written(self, replica: Replica, looked_at: Iterable[int], told: Any) -> None:
        """Rank 0's numbers in what ranks were seen to have written otherwise. A collective if there is any."""
        self._by_rows |= {place for place, values in zip(looked_at, zip(*told)) if len(set(values)) > 1}
        if self._by_rows:
            broadcast_([each for place, each in self._unmended(replica).items() if place in self._by_rows])

    # ---- states ------------------------------------------------------------------------------------------------------

    def __deepcopy__(self, memo: dict[int, Any]) -> WrappedModel:
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        held = (item for item in self.__dict__.items() if item[0] not in _PER_OBJECT)
        new.__dict__.update((name, copy.deepcopy(value, memo)) for name, value in held)
        new._begin()
        return new

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        plain = nn.DataParallel.__new__(nn.DataParallel)
        nn.Module.__init__(plain)
        base = {name: self.__dict__[name] for name in plain.__dict__ if name in self.__dict__}
        state = {**base, "dim": self.dim, "device_ids": self.device_ids}
        if self.device_ids:
            first = self.device_ids[0]
            state.update(output_device=first, src_device_obj=torch.device("cuda", first))
        return copyreg._reconstructor, (nn.DataParallel, object, None), state  # type: ignore[attr-defined]

    @classmethod
    def __subclasshook__(cls, kind: type) -> Any:
        """`isinstance(m, nn.DataParallel)` was converted to this class, and a checkpoint may hold a plain one."""
        return (cls is WrappedModel and issubclass(kind, nn.DataParallel)) or NotImplemented

    # ---- of DistributedDataParallel ----------------------------------------------------------------------------------

    def replicate(self, module: Any, device_ids: Any) -> NoReturn:
        """DataParallel's step. There is none here: packages that synchronise BatchNorm put their own in its place."""
        raise NotImplementedError("a model wrapped by dp2ddp_runtime makes no replicas in one process")

    def _own_syncs(self) -> str:
        """Which layers are to be synchronised, by whether `replicate` was exchanged."""
        if "replicate" not in self.__dict__ and type(self).replicate is WrappedModel.replicate:
            return ""
        calls = getattr(getattr(self.replicate, "__code__", None), "co_names", ())
        has_layers = any(takes_all_rows(layer, "own") for layer in self.module.modules())
        if not has_layers and "execute_replication_callbacks" not in calls:  # which does nothing without such layers
            raise RuntimeError(
                f"the `replicate` of the wrapped model at {place.line()} was exchanged, and the model has no layers of "
                "a package that synchronises BatchNorm so: leave that out, or wrap the model with sync_bn=True"
            )
        return "own"

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Changes nothing: each backward sends its gradients, whose sum is what one backward would send in the end."""
        yield


# As the original prints itself, and as scripts write it into checkpoints and file names.
WrappedModel.__name__ = nn.DataParallel.__name__
_LISTS_UNTIL = 8  # calls
_PER_OBJECT = ("_cutter", "_memory", "_calls", "_trained", "_by_rows")


@contextlib.contextmanager
def keeping_saved_tensors() -> Iterator[None]:
    """A checkpoint around a wrapped model (`use_reentrant=False`) keeps what replicas save, as it does for
    DataParallel's threads, and doesn't run them again. (torch 2.1 doesn't tell whether there is one.)
    """
    asks: Any = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if asks is None or asks(False) is None:
        yield
    else:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            yield


def _of_the_script(error: Exception) -> Exception:
    """The error from the script's first line on."""
    trace = error.__traceback__
    while trace is not None and not place.origin(trace.tb_frame.f_code.co_filename)[0]:
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)


# ---- functions -------------------------------------------------------------------------------------------------------

# A module stays here for good, as its wrapped self holds it: scripts make few of them.
_wrapped: weakref.WeakKeyDictionary[nn.Module, dict[Any, WrappedModel]] = weakref.WeakKeyDictionary()


def data_parallel(
    module: nn.Module,
    inputs: Any,
    device_ids: Any = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """`torch.nn.parallel.data_parallel` over ranks: splits the inputs, runs the module, gathers the outputs.

    The module takes part from its first call on. All ranks call it with the same inputs.

    Args:
        module: the module.
        inputs: a tensor, or a tuple of positional arguments.
        device_ids, output_device, dim: as `wrap_model` takes them.
        module_kwargs: keyword arguments.
    """
    arguments = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    wrapped = _wrapped.setdefault(module, {})
    key = dim, len(device_ids) if isinstance(device_ids, (list, tuple, range)) else None
    if key not in wrapped:
        wrapped[key] = WrappedModel(module, device_ids, output_device, dim)
    return wrapped[key](*arguments, **(module_kwargs or {}))


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
        plain: Any = OrderedDict((key.removeprefix(_PREFIX), value) for key, value in state.items())
        versions = getattr(state, "_metadata", {})  # by module; "" is the model itself
        below = {f"{name}.": version for name, version in versions.items() if f"{name}.".startswith(_PREFIX)}
        inner = {name[len(_PREFIX) :].rstrip("."): version for name, version in below.items()}
        plain._metadata = inner or versions
        models = [model, *(each for name, each in model.named_children() if name == "module")]
        fits = [(each, form) for each in models for form in (state, plain)]
        model, state = max(fits, key=lambda fit: len(fit[0].state_dict().keys() & fit[1].keys()))
    return model.load_state_dict(state, *args, **kwargs)
