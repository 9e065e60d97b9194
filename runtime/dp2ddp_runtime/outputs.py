"""Gathering a model's outputs over the ranks, with autograd, and cutting its inputs for them.

Gradients follow one convention. A tensor that every rank has (a whole batch, a gathered output) has the same gradient
on every rank, the one `nn.DataParallel` gives it. A rank's own chunk has N times its share of it, so that averaging
the parameters' gradients over the N ranks makes the sum.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch

from . import nesting, world
from .exchange import Exchange
from .payload import Part


class _Slot:
    """Marks a tensor's place in a pickled nesting."""


def concatenate(parts: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """The parts as one tensor: along `dim`, scalars as a vector with an entry each, as in `nn.DataParallel`."""
    if all(part.dim() == 0 for part in parts):
        return torch.stack(list(parts))
    return torch.cat(list(parts), dim)


class _Gather(torch.autograd.Function):
    """Local tensors in, gathered ones out. Backward: each rank's own slice of the gradients, times N."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, anchor: torch.Tensor | None, *local: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.plan = plan
        gathered, plan.gathered = plan.gathered, []  # the graph must not hold on to its own results
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(out for out, wanted in zip(gathered, plan.differentiable) if not wanted))
        return tuple(gathered)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        plan: _Plan = ctx.plan
        return (None, None, *(plan.own_slice(index, grads[index]) for index in range(plan.local_count)))


class _Plan:
    """How one gather went: the results, and where this rank's rows are in them."""

    def __init__(self, parts: Sequence[Part], local: Sequence[torch.Tensor], count: int, dim: int) -> None:
        self.dim = dim
        self.local_count = len(local)
        self.ran = world.rank() < count
        self.shapes = [tuple(tensor.shape) for tensor in local]
        columns = list(zip(*(part.tensors for part in parts[:count])))
        self.gathered = [concatenate(column, dim) for column in columns]
        self.differentiable = [any(part.note.requires_grad[i] for part in parts[:count]) for i in range(len(columns))]
        self.offsets = [
            sum(tensor.size(dim) if tensor.dim() else 1 for tensor in column[: world.rank()]) for column in columns
        ]

    def own_slice(self, index: int, grad: torch.Tensor | None) -> torch.Tensor | None:
        if grad is None:
            return None
        shape = self.shapes[index]
        if not self.ran:  # an idle rank ran on borrowed rows: these count for nothing
            return grad.new_zeros(shape)
        if not shape:
            return grad[self.offsets[index]] * world.world_size()
        return grad.narrow(self.dim, self.offsets[index], shape[self.dim]) * world.world_size()


class _Note(NamedTuple):
    """What a rank tells about its outputs."""

    requires_grad: tuple[bool, ...]
    on_cpu: tuple[bool, ...]
    nesting: Any  # rank 0's, where others need it: an idle rank has none, and Python values may differ between ranks


def gather_outputs(
    output: Any, exchange: Exchange, count: int, dim: int, key: Hashable = None, device: torch.device | None = None
) -> Any:
    """Gather the outputs of the ranks' chunks along `dim`, in rank order, differentiably, as `nn.DataParallel` does.

    Args:
        output: this rank's output: tensors in any nesting. On an idle rank (`rank() >= count`) None, or what it ran
            only to take part: that is left out, and gets zero gradients.
        exchange: what carries it; one object for all calls of one module.
        count: how many ranks, from rank 0 on, had a chunk.
        dim: the dimension along which outputs are concatenated. Scalars make a vector with `count` entries.
        key: see `Exchange`.
        device: where the module lives; this rank's device by default.

    Raises:
        RuntimeError: the ranks' outputs don't have the same number of tensors.
    """
    device = world.device() if device is None else device
    local = nesting.tensors(output)
    parts = exchange(_describe(output, local, count), device, key)
    if len({len(part.tensors) for part in parts[:count]}) > 1:
        raise RuntimeError(
            "the model returned different numbers of tensors on different ranks: "
            f"{[len(part.tensors) for part in parts[:count]]}"
        )
    plan = _Plan(parts, local, count, dim)
    main: _Note = parts[0].note
    plan.gathered = [t if on_cpu else t.to(device) for t, on_cpu in zip(plan.gathered, main.on_cpu)]
    results = plan.gathered
    if torch.is_grad_enabled() and any(plan.differentiable):
        anchor = torch.empty(0, requires_grad=True)  # on an idle rank, too, the outputs need a graph
        results = list(_Gather.apply(plan, anchor, *local))
    pending = iter(results)
    if main.nesting is not None:
        return nesting.map_leaves(lambda leaf: next(pending) if isinstance(leaf, _Slot) else leaf, main.nesting)
    return nesting.map_tensors(lambda _: next(pending), output)


def _describe(output: Any, local: list[torch.Tensor], count: int) -> Part:
    flags = tuple([tensor.requires_grad for tensor in local])
    on_cpu = tuple([tensor.device.type == "cpu" for tensor in local])
    idle_ranks = count < world.world_size()
    values = [leaf for leaf in nesting.leaves(output) if leaf is not None and not isinstance(leaf, torch.Tensor)]
    told = nesting.map_tensors(lambda _: _Slot(), output) if world.is_main() and (idle_ranks or values) else None
    return Part(local, _Note(flags, on_cpu, told))


class _TakeChunk(torch.autograd.Function):
    """This rank's rows of a tensor that all ranks have. Backward: all ranks' chunk gradients, gathered."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, gather: _GatherGradient, start: int, length: int) -> torch.Tensor:
        ctx.gather, dim = gather, gather.dim
        return tensor.narrow(dim, start, length)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return ctx.gather(grad), None, None, None


class _GatherGradient(NamedTuple):
    """Makes the gradient of a whole tensor from those of its chunks."""

    exchange: Exchange
    shape: torch.Size
    dim: int
    chunks: int

    def __call__(self, grad: torch.Tensor) -> torch.Tensor:
        rows = self.shape[self.dim]
        whole: torch.Tensor = gather_outputs(grad, self.exchange, self.chunks, self.dim, ("grad", rows), grad.device)
        missing = rows - whole.size(self.dim)  # rows that were left out, because another input had fewer chunks
        if missing:
            shape = list(self.shape)
            shape[self.dim] = missing
            whole = torch.cat([whole, whole.new_zeros(shape)], self.dim)
        return whole / world.world_size()


def take_rows(
    tensor: torch.Tensor, exchange: Exchange, dim: int, index: int, count: int, device: torch.device
) -> torch.Tensor:
    """Chunk `index` of `count` of a tensor that all ranks have, on `device`.

    Differentiable: the tensor's gradient is gathered from all ranks, so every rank must run backward through it.
    """
    size = -(-tensor.size(dim) // world.world_size())
    start = min(index * size, tensor.size(dim))
    length = min(size, tensor.size(dim) - start)
    if torch.is_grad_enabled() and tensor.requires_grad:
        gather = _GatherGradient(exchange, tensor.shape, dim, count)
        rows: torch.Tensor = _TakeChunk.apply(tensor, gather, start, length)
    else:
        rows = tensor.narrow(dim, start, length)
    if device.type == "cuda" and rows.device != device:
        return rows.to(device)
    # A copy: what the module does to its input in place must not make the ranks' batches differ.
    return rows.clone()
