"""The oracle: `nn.DataParallel` with N replicas, emulated on one device, to compare converted scripts with.

`nn.DataParallel` without a GPU passes its inputs straight through, so it can't be asked what N devices would give.
This class does what its documentation and `torch.nn.parallel.{scatter_gather,replicate}` say, on the module's own
device: https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar, cast

import torch
from dp2ddp_runtime.base.nesting import count_chunks
from dp2ddp_runtime.model.wrapped import as_in_a_thread
from dp2ddp_runtime.ranks.rng import Stream
from torch import nn

replication: Any = import_module("torch.nn.parallel.replicate")  # `torch.nn.parallel.replicate` is the function


class EmulatedDataParallel(nn.DataParallel):  # type: ignore[type-arg,unused-ignore]
    """Stands in for `nn.DataParallel`, with `n` replicas that run one after the other.

    Args:
        module: the module to run. Anything else (old scripts wrap their optimizer) is only held as `.module`.
        device_ids: kept as given; the number of replicas doesn't depend on it.
        output_device: kept as given.
        dim: the dimension along which inputs are split, in `torch.chunk`'s sizes, and outputs concatenated.
        n: the number of replicas; the class attribute `replicas` by default.

    Each replica has copies of the buffers (replica 0 has the originals, so only its updates in place are kept), sees
    the parameters as non-leaf tensors, and draws random numbers from its own stream, seeded as rank r's of a
    converted script (`dp2ddp_runtime.ranks.rng.replica_seed`). With `n == 1` the module is called as it is.
    """

    replicas: ClassVar[int] = 2
    #: The replicas' random streams; None: each instance has its own. A rank of a converted script has one for all its
    #: models.
    streams: ClassVar[Sequence[Stream] | None] = None

    def __init__(
        self,
        module: Any,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        n: int | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.n = self.replicas if n is None else n
        if self.n < 1:
            raise ValueError(f"n must be at least 1, not {self.n}")
        self.dim = dim
        self.module = module
        self.device_ids: list[Any] = list(range(self.n) if device_ids is None else device_ids)
        self.output_device: Any = output_device
        self._streams = self._make_streams()

    def _make_streams(self) -> Sequence[Stream]:
        return [Stream(rank=r) for r in range(self.n)] if self.streams is None else self.streams

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Scatter the inputs, run a replica on each chunk, gather their outputs along `dim`.

        Raises:
            TypeError: outputs of a kind that `nn.DataParallel` doesn't gather either.
        """
        if self.n == 1:
            return self.module(*inputs, **kwargs)
        calls = _scatter_call(inputs, kwargs, self.n, self.dim)
        self.splits(calls)
        outputs = []
        for stream, replica, (args, named) in zip(self._streams, _replicate(self.module, len(calls)), calls):
            with stream, as_in_a_thread(len(calls), self._device):
                outputs.append(replica(*args, **named))
        return _gather(outputs, self.dim)

    @property
    def _device(self) -> torch.device:
        return next((param.device for param in self.module.parameters()), torch.device("cpu"))

    def splits(self, calls: Sequence[Any]) -> None:
        """Is called whenever a batch is split over several replicas, with what each is called with."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_streams": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._streams = self._make_streams()


def emulated_data_parallel(
    module: nn.Module,
    inputs: Any,
    device_ids: Sequence[int | torch.device] | None = None,
    output_device: int | torch.device | None = None,
    dim: int = 0,
    module_kwargs: Mapping[str, Any] | None = None,
    *,
    kind: Callable[..., nn.Module],
) -> Any:
    """Stands in for `torch.nn.parallel.data_parallel`: one call of `module` as a `kind` of `DataParallel` calls it.

    Args:
        module, inputs, device_ids, output_device, dim, module_kwargs: as torch's function takes them.
        kind: the class that says how many replicas there are; with `streams`, or each call draws the same numbers.
    """
    arguments = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    wrapped = kind(module, device_ids, output_device, dim)
    return wrapped(*arguments, **(module_kwargs or {}))


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields") and hasattr(value, "_asdict")


def _scatter_call(args: Any, kwargs: Any, n: int, dim: int) -> list[Any]:
    """The (args, kwargs) of each replica that runs; fewer than `n` where the batch has too few chunks."""
    if not args and not kwargs:
        return [((), {})]
    counts = [count_chunks(part, n, dim) for part in (args, kwargs)]
    total = max((found for found in counts if found is not None), default=n)
    # What is cut into fewer parts is left out for the last replicas (`torch.nn.parallel.scatter_kwargs`).
    parts = [
        [*_scatter(part, n, dim)[: count or total], *([type(part)()] * n)]
        for part, count in zip((args, kwargs), counts)
    ]
    return [*zip(*(part[:total] for part in parts))]


def _scatter(value: Any, n: int, dim: int) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return list(value.chunk(n, dim)) if value.dim() else [value] * n
    if _is_namedtuple(value):
        return [type(value)(*parts) for parts in zip(*(_scatter(v, n, dim) for v in value))]
    if isinstance(value, (tuple, list)) and value:
        make = tuple if isinstance(value, tuple) else list
        return [make(parts) for parts in zip(*(_scatter(v, n, dim) for v in value))]
    if isinstance(value, dict) and value:
        return [type(value)(parts) for parts in zip(*(_scatter(item, n, dim) for item in value.items()))]
    return [value] * n


def _replicate(module: nn.Module, count: int) -> list[nn.Module]:
    """`count` replicas, by torch's own `replicate`, which needs devices for nothing but to broadcast to them."""
    before = replication._broadcast_coalesced_reshape
    replication._broadcast_coalesced_reshape = _broadcast
    try:
        copies: list[nn.Module] = replication.replicate(module, [*range(count)], detach=not torch.is_grad_enabled())
        return copies
    finally:
        replication._broadcast_coalesced_reshape = before


def _broadcast(tensors: Sequence[torch.Tensor], devices: Sequence[Any], detach: bool = False) -> list[Any]:
    """Each replica's `tensors`: the first has these themselves, as what lies on its device isn't copied."""
    if not tensors:
        return []
    if detach:
        return [list(tensors), *([tensor.detach().clone() for tensor in tensors] for _ in devices[1:])]
    copies = _Broadcast.apply(len(devices), *tensors)
    return [list(copies[start : start + len(tensors)]) for start in range(0, len(copies), len(tensors))]


class _Broadcast(torch.autograd.Function):
    """`torch.nn.parallel._functions.Broadcast` on one device: what no replica used has zeros for a gradient."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> Any:
        ctx.tensors = len(tensors)
        copies = [*tensors, *(tensor.clone() for _ in range(count - 1) for tensor in tensors)]
        needed = ctx.needs_input_grad[1:] * count
        ctx.mark_non_differentiable(*(copy for copy, needs in zip(copies, needed) if not needs))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        sums = list(grads[: ctx.tensors])
        for place, grad in enumerate(grads[ctx.tensors :]):
            sums[place % ctx.tensors] = sums[place % ctx.tensors] + grad
        return (None, *sums)


def _gather(outputs: Sequence[Any], dim: int) -> Any:
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        if dim == 0 and all(out.dim() == 0 for out in outputs):
            return torch.stack(list(outputs))
        return torch.cat(list(outputs), dim)
    if first is None:
        return None
    if isinstance(first, dict):
        if any(len(out) != len(first) for out in outputs):
            raise ValueError("All dicts must have the same number of keys")
        return cast(Any, type(first))((key, _gather([out[key] for out in outputs], dim)) for key in first)
    if _is_namedtuple(first):
        return cast(Any, type(first))._make(_gather(parts, dim) for parts in zip(*outputs))
    if isinstance(first, (tuple, list)):
        return cast(Any, type(first))(_gather(parts, dim) for parts in zip(*outputs))
    raise TypeError(f"nn.DataParallel can't gather outputs of type {type(first).__name__}")
