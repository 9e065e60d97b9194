"""Gathering the wrapped model's outputs, with autograd."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch._compile import _disable_dynamo

from ..base import nesting, world
from ..base.location import here
from ..batches.deferred import defer
from ..gradients.adjoint import NO, YES, Source, attach, perhaps, reached
from ..ranks.collectives import gather_rows
from ..ranks.exchange import Divergence, exchange

#: Bytes of a gathered output above which it stays where it is: deferred, until the script looks at it.
LARGE = 1 << 20


class Note(NamedTuple):
    """What ranks tell each other along with their outputs."""

    fingerprints: dict[str, Any]  # of what has to be the same on all ranks, by name: plain values
    has_aside: bool  # whether a backward inside of this rank's forward has reached parameters
    is_outdated: bool  # whether this rank's forward has written into parameters


class _Column(NamedTuple):
    """One tensor of the outputs, as all ranks told it."""

    chunks: int  # how many ranks have rows
    sizes: tuple[int, ...]  # along `dim`; 1 for scalars; 0 on ranks without rows
    requires_grad: bool  # on any rank
    alike: bool  # in all but the number of rows
    on_cpu: bool
    held: tuple[bool, ...]  # whether it was too large to come along
    made_of: tuple[int, ...]  # of the sources, on any rank: `adjoint.reached`


@_disable_dynamo
def gather_outputs(
    output: Any, count: int, dim: int, device: torch.device, sources: Sequence[Source], note: Note
) -> tuple[Any, list[Note]]:
    """The outputs of the ranks' chunks along `dim`, in rank order, differentiably, as `nn.DataParallel` gathers them.

    And the ranks' notes. A collective. Scalars make a vector with an entry for each of the `count` ranks that had a
    chunk. A rank without rows has run on rank 0's: what it has is left out, and gets zero gradients.

    Raises:
        Divergence: the ranks' outputs don't have the same structure, or fingerprints differ.
    """
    local = nesting.tensors(output)
    held = [_is_large(tensor, dim) for tensor in local]
    others = [leaf for leaf in nesting.leaves(output) if not isinstance(leaf, torch.Tensor)]
    told = {
        "tensors": [_describe(tensor, is_held, sources) for tensor, is_held in zip(local, held)],
        "values": zlib.crc32(repr(others).encode()),
    }
    small = [tensor for tensor, is_held in zip(local, held) if not is_held]
    parts = exchange("the wrapped model's outputs", [told, *note, small])
    notes = [Note(*theirs[1:-1]) for theirs in parts]
    _compare([each.fingerprints for each in notes], here().line)
    descriptions = [theirs["tensors"] for theirs, *_ in parts]
    if len({len(each) for each in descriptions[:count]}) > 1:
        numbers = [len(each) for each in descriptions[:count]]
        raise Divergence(f"the model returned different numbers of tensors on different ranks: {numbers}")
    sent = [iter(tensors) for *_, tensors in parts]
    columns = [_column([each[index] for each in descriptions], count, dim) for index in range(len(local))]
    results = iter([_gather(*each, sent, dim, device, sources) for each in zip(local, columns)])
    return nesting.map_tensors(lambda _: next(results), output), notes


def _is_large(tensor: torch.Tensor, dim: int) -> bool:
    return tensor.dim() > dim and tensor.numel() * tensor.element_size() * world.world_size() > LARGE


def _describe(tensor: torch.Tensor, held: bool, sources: Sequence[Source]) -> list[Any]:
    on_cpu, made_of = tensor.device.type == "cpu", reached(tensor, sources)
    return [list(tensor.shape), str(tensor.dtype), tensor.requires_grad, on_cpu, held, made_of]


def _column(told: Sequence[Any], count: int, dim: int) -> _Column:
    shapes, dtypes, grads, on_cpu, held, made_of = zip(*told)
    sizes = [(shape[dim] if len(shape) > dim else 1) if rank < count else 0 for rank, shape in enumerate(shapes)]
    kinds = {
        (tuple(shape[:dim] + shape[dim + 1 :]), dtype, grad)
        for shape, dtype, grad in list(zip(shapes, dtypes, grads))[:count]
    }
    sources = tuple(map(max, zip(*made_of)))
    return _Column(count, tuple(sizes), any(grads[:count]), len(kinds) == 1, on_cpu[0], held, sources)


def _gather(
    local: torch.Tensor,
    column: _Column,
    sent: Sequence[Any],
    dim: int,
    device: torch.device,
    sources: Sequence[Source],
) -> torch.Tensor:
    has_graph = torch.is_grad_enabled() and column.requires_grad
    made_of = [(source, how) for source, how in zip(sources, column.made_of) if how != NO and has_graph]
    tokens = [token if how == YES else perhaps(token) for source, how in made_of for token in source.tokens]
    if all(column.held) and column.alike:
        return defer(local, column.sizes, dim, True, tokens)
    shares = [None if is_held else next(tensors) for tensors, is_held in zip(sent, column.held)]
    came = [share for share in shares[: column.chunks] if share is not None]
    whole = gather_rows(local, column.sizes, dim) if any(column.held) else nesting.concatenate(came, dim)
    whole = whole if column.on_cpu else whole.to(device)
    return attach(local, whole, column.sizes, dim, tokens) if has_graph else whole


def _compare(notes: Sequence[dict[str, Any]], line: str) -> None:
    """Raise `Divergence` where a fingerprint isn't rank 0's."""
    for name, own in notes[0].items():
        different = [rank for rank, note in enumerate(notes) if note.get(name) != own]
        if different:
            raise Divergence(
                f"{line or 'a call'}: {name} is different on rank 0 and rank {different[0]}. What the script makes "
                "itself must be the same on all ranks: seed the generator that it comes from, load it by a loader that "
                "went through ddp.shard_loader, or pass it through ddp.broadcast"
            )
