"""What goes into this rank's replica, and what comes out of it: cut as by `torch.chunk`, and gathered, with autograd.

Of deferred batches the rows are here; whole ones are cut.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch._compile import _disable_dynamo
from torch.nn.parallel.scatter_gather import gather

from ..base import nesting, world
from ..base.location import here
from ..base.nesting import chunk_sizes
from ..batches import unsharded
from ..batches.deferred import Deferred, defer, materialize
from ..gradients.adjoint import NO, YES, Layout, Source, Take, attach, perhaps, reached, start
from ..ranks.collectives import checksum, gather_rows
from ..ranks.exchange import Divergence, exchange

#: Bytes of a gathered output above which it stays where it is: deferred, until the script looks at it.
LARGE = 1 << 20
_CUTS = False  # whether torch's `gather` cuts lists to the shortest, as older torch's does
with contextlib.suppress(ValueError):
    _CUTS = gather([(), (None,)], 0) == ()
_UNLIKE = (
    "the model returned other lists or dicts of tensors on other ranks, which nn.DataParallel doesn't gather, either, "
    "in this version of torch: return the same structure whatever the rows are, and whatever it draws"
)
_FIRST_CHECKED = 10  # calls; after these every one whose number is a power of two


class Call(NamedTuple):
    """One call of the wrapped model."""

    own: Any  # the arguments for this rank's rows; rank 0's on a rank without any
    chunks: int  # how many ranks, from rank 0 on, have rows
    fingerprints: dict[str, Any]  # of what has to be the same on all ranks, by name
    sources: list[Source]  # the inputs that have gradients


class Inputs:
    """The inputs of one wrapped model with so many replicas, on the first ranks, which are cut along `dim`."""

    def __init__(self, dim: int, replicas: int) -> None:
        self._dim = dim
        self._replicas = replicas
        self.calls = 0

    @_disable_dynamo
    def cut(self, arguments: tuple[Any, Any], device: torch.device) -> Call:
        """Each rank's part of a call's arguments, on `device`. A collective where a batch isn't cut as the call is.

        Tensors in tuples, lists and dicts are cut, as `nn.DataParallel` cuts them. If some are cut into fewer parts
        than others, the last ranks lack them.
        """
        fingerprints = self._fingerprints(arguments)
        counts = [nesting.count_chunks(part, self._replicas, self._dim) for part in arguments]
        count = max((found for found in counts if found is not None), default=self._replicas if any(arguments) else 1)
        sources: list[Source] = []

        def own_rows(count: int, tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, Deferred) or not tensor.is_rows or not self._is_cut_alike(tensor, count):
                whole = materialize(tensor)
                rows, tokens = _take_rows(whole, self._dim, self._sizes(whole, count), device)
                sources.extend(Source((rows.grad_fn,), tokens) for _ in tokens)
                return rows
            rows = tensor.rows.to(device, non_blocking=True) if device.type == "cuda" else tensor.rows
            rows = rows.clone() if rows is tensor.rows else rows  # the module may write into them
            if tensor.tokens:
                sources.append(Source((rows.grad_fn,), tensor.tokens))
            return rows

        def own_part(part: Any, chunks: int) -> Any:
            cut = nesting.take_chunk(part, functools.partial(own_rows, chunks))
            return type(part)() if chunks <= world.rank() < count else cut

        own = [own_part(part, chunks or count) for part, chunks in zip(arguments, counts)]
        return Call(own, count, fingerprints, sources)

    def _is_cut_alike(self, tensor: Deferred, count: int) -> bool:
        sizes = self._sizes(tensor, self._replicas) if tensor.batch_dim == self._dim else None
        return tensor.sizes == sizes and sum(size > 0 for size in sizes) == count

    def _sizes(self, tensor: torch.Tensor, count: int) -> tuple[int, ...]:
        """How many rows each rank has: as many as `torch.chunk` gives the first `count` replicas."""
        sizes = chunk_sizes(tensor.size(self._dim), self._replicas, world.world_size())
        return tuple(size if rank < count else 0 for rank, size in enumerate(sizes))

    def _fingerprints(self, arguments: Any) -> dict[str, Any]:
        """Of tensors that no loader of ours made, in the first calls and ever more rarely then; of numbers and text."""
        self.calls += 1
        found: dict[str, Any] = {}
        leaves = nesting.leaves(arguments)
        unsharded.look(leaves)
        checked = self.calls <= _FIRST_CHECKED or self.calls & (self.calls - 1) == 0
        for index, leaf in enumerate(leaves):
            if type(leaf) in (bool, int, float, str):
                found[f"argument {index + 1} of the wrapped model"] = repr(leaf)
            elif isinstance(leaf, torch.Tensor) and not isinstance(leaf, Deferred) and leaf.layout == torch.strided:
                name = f"the tensor that is argument {index + 1} of the wrapped model"
                found[name] = [list(leaf.shape), str(leaf.dtype), *(checksum(leaf).tolist() if checked else ())]
        return found


def _chunk(tensor: torch.Tensor, dim: int, sizes: tuple[int, ...]) -> Layout:
    """How a whole input lies on the ranks, each of which has so many rows."""
    shape = list(tensor.shape)
    shape[dim] = sizes[world.rank()] or sizes[0]
    return Layout(sizes, dim, tensor.size(dim), shape)


def _take_rows(
    tensor: torch.Tensor, dim: int, sizes: tuple[int, ...], device: torch.device
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """This rank's chunk of a tensor that all ranks have, on `device`; rank 0's on a rank without any.

    And the token of its gradient, if it has one.
    """
    chunk = _chunk(tensor, dim, sizes)
    rows: torch.Tensor
    if torch.is_grad_enabled() and tensor.requires_grad:
        rows, token = Take.apply(tensor, chunk, True, start())
        return rows.to(device) if device.type == "cuda" else rows, [token]
    rows = chunk.take(tensor, borrow=True)
    if device.type == "cuda" and rows.device != device:
        return rows.to(device), []
    # A copy: what the module does to its input in place must not make the ranks' batches differ.
    return rows.clone(), []


class Note(NamedTuple):
    """What ranks tell each other along with their outputs."""

    fingerprints: dict[str, Any]  # of what has to be the same on all ranks, by name: plain values
    has_aside: bool  # whether a backward inside of this rank's forward has reached parameters
    is_outdated: bool  # whether this rank's forward has written into parameters
    changed: dict[str, int | None]  # of what the replicas share: `Shared.changed`


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
        Divergence: the ranks' outputs have different structures that torch wouldn't gather, or fingerprints differ.
    """
    local = nesting.tensors(output)
    held = [_is_large(tensor, dim) for tensor in local]
    outline = _outline(output, itertools.count())
    tensors = [_describe(tensor, is_held, sources) for tensor, is_held in zip(local, held)]
    small = [None if is_held else tensor for tensor, is_held in zip(local, held)]
    parts = exchange("the wrapped model's outputs", [tensors, zlib.crc32(repr(outline).encode()), *note, small])
    notes = [Note(*theirs[2:-1]) for theirs in parts]
    _compare([each.fingerprints for each in notes], here().line)
    picks: list[Sequence[int]] = [[number] * len(parts) for number in range(len(local))]
    if len({theirs[1] for theirs in parts}) > 1:
        picks = []
        output = _in_common(output, exchange("the structure of the wrapped model's outputs", outline), count, picks)
    gathered = {}
    for pick in picks:
        told, shares = zip(*((theirs[0][number], theirs[-1][number]) for theirs, number in zip(parts, pick)))
        own = pick[world.rank()]
        gathered[own] = _gather(local[own], _column(told, count, dim), shares, dim, device, sources)
    results = map(gathered.__getitem__, sorted(gathered))
    return nesting.map_tensors(lambda _: next(results), output), notes


def _outline(value: Any, numbers: Iterator[int]) -> Any:
    """The nesting of a forward's outputs as plain values, with a number for each tensor."""
    inner = None if isinstance(value, torch.Tensor) else nesting.items(value)
    if inner is None:
        return next(numbers) if isinstance(value, torch.Tensor) else None
    return {key: _outline(each, numbers) for key, each in inner.items()}


def _in_common(value: Any, outlines: Sequence[Any], count: int, picks: list[Sequence[int]]) -> Any:
    """`value` without what not all `count` ranks have, as `gather` does it; `picks` gets each tensor's numbers."""
    first, inner = outlines[0], nesting.items(value)
    if len(set(map(type, outlines))) > 1:
        raise Divergence(_UNLIKE)
    if inner is None or isinstance(value, torch.Tensor):
        picks += [] if first is None else [outlines]
        return value
    keys = [key for key in first if all(key in each for each in outlines[:count])]
    is_cut = any(len(each) > len(keys) for each in outlines[:count])
    lacks = any(key not in each for key in keys for each in outlines)  # a rank without rows has gone another way
    if lacks or (is_cut and not (_CUTS and isinstance(value, (tuple, list)))):
        raise Divergence(_UNLIKE)
    common = {key: _in_common(inner[key], [each[key] for each in outlines], count, picks) for key in keys}
    return nesting.rebuilt(value, common)


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
    shares: Sequence[torch.Tensor | None],
    dim: int,
    device: torch.device,
    sources: Sequence[Source],
) -> torch.Tensor:
    has_graph = torch.is_grad_enabled() and column.requires_grad
    made_of = [(source, how) for source, how in zip(sources, column.made_of) if how != NO and has_graph]
    tokens = [token if how == YES else perhaps(token) for source, how in made_of for token in source.tokens]
    if all(column.held) and column.alike:
        return defer(local, column.sizes, dim, True, tokens)
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
