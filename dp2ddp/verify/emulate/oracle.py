"""The oracle: `nn.DataParallel` with N replicas, emulated on one device, to compare converted scripts with.

`nn.DataParallel` without a GPU passes its inputs straight through, so it can't be asked what N devices would give. Here
its parts are torch's own (`torch.nn.parallel.{scatter_gather,replicate}`: nesting, padding, which parameters a replica
has), on the module's own device: what needs several, cutting a tensor, putting tensors together and copying
parameters, is done there. https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch
from dp2ddp_runtime.model import chunks, keeping_saved_tensors
from dp2ddp_runtime.streams import Stream
from torch import nn

# Modules that functions of the same name hide.
_nesting: Any = import_module("torch.nn.parallel.scatter_gather")
_replication: Any = import_module("torch.nn.parallel.replicate")


class EmulatedDataParallel(nn.DataParallel):  # type: ignore[type-arg,unused-ignore]
    """Stands in for `nn.DataParallel`, with `n` replicas that run one after the other.

    There are as many as `device_ids`, but no more than the class attribute `replicas`, or `n`. A `module` that is none
    (old scripts wrap their optimizer) is only held as `.module`.

    Each replica has copies of the buffers (replica 0 has the originals, so only its updates in place are kept), sees
    the parameters as non-leaf tensors, and draws random numbers from its own stream, seeded as rank r's of a
    converted script (`dp2ddp_runtime.streams.replica_seed`). With `n == 1` the module is called as it is.
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
        named = len(device_ids) if isinstance(device_ids, Sequence) and device_ids else self.replicas
        self.n = min(self.replicas, named) if n is None else n
        self.dim = dim
        self.module = module
        self.device_ids: list[Any] = list(range(self.n) if device_ids is None else device_ids)
        self.output_device: Any = output_device
        self._own = [Stream(rank=r) for r in range(self.n)] if self.streams is None else []

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Scatter the inputs, run a replica on each chunk, gather their outputs along `dim`; raises as torch's does."""
        if self.n == 1:
            return self.module(*inputs, **kwargs)
        calls = _calls(inputs, kwargs, self.n, self.dim)
        with mock.patch.object(_replication, "_broadcast_coalesced_reshape", _broadcast):
            copies = _replication.replicate(self.module, [*range(len(calls))], detach=not torch.is_grad_enabled())
        outputs = []
        for number, (stream, replica, (args, named)) in enumerate(zip(self.streams or self._own, copies, calls)):
            with stream, keeping_saved_tensors():
                outputs.append(self.run(number, replica, args, named))
        with _on_one_device():
            return _nesting.gather(outputs, 0, self.dim)

    def run(self, number: int, replica: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a replica, whose number is that of its device."""
        return replica(*args, **kwargs)


def _calls(args: Any, kwargs: Any, n: int, dim: int) -> list[Any]:
    """The (args, kwargs) of each replica that runs; fewer than `n` where the batch has too few chunks.

    How many there are the tensors say. `torch.nn.parallel.scatter_kwargs` counts plain values as well, and then calls
    the last replicas without the batch, which is an error.
    """
    total = _count_chunks((args, kwargs), n, dim) or 1
    with _on_one_device(total):
        cut = ([*_nesting.scatter(part, [*range(n)], dim)][:total] or [part] * total for part in (args, kwargs))
        return [*zip(*cut)]


def _count_chunks(value: Any, n: int, dim: int) -> int | None:
    """How many chunks the first tensor in nested arguments has; None without one."""
    if isinstance(value, torch.Tensor):
        return (sum(map(bool, chunks(value.size(dim), n, n))) or n) if value.dim() > dim else None
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return next((found for each in inner if (found := _count_chunks(each, n, dim))), None)


@contextmanager
def _on_one_device(count: int = 0) -> Iterator[None]:
    """Let torch's `scatter` and `gather` cut tensors, and put them together, where they are.

    What has fewer chunks than the batch, of which there are `count`, each replica has all of.
    """

    def chunks_of(devices: Sequence[int], sizes: None, dim: int, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        if not torch.is_grad_enabled():  # a view of a leaf would require gradients even so, and a copy doesn't
            tensor = tensor.detach()
        found = tensor.chunk(len(devices), dim) if tensor.dim() else ()
        return found if found and len(found) >= count else (tensor,) * len(devices)

    functions = {"Scatter": SimpleNamespace(apply=chunks_of), "Gather": SimpleNamespace(apply=_together)}
    with mock.patch.dict(vars(_nesting), functions):
        yield


def _together(device: int, dim: int, *outputs: torch.Tensor) -> torch.Tensor:
    if dim == 0 and all(output.dim() == 0 for output in outputs):
        return torch.stack(outputs)
    return torch.cat(outputs, dim)


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
