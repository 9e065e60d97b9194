"""Cutting the wrapped model's inputs: of deferred batches the rows are here, whole ones are cut as by `torch.chunk`."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch._compile import _disable_dynamo

from ..base import nesting, world
from ..base.nesting import chunk_sizes
from ..batches.deferred import Deferred, materialize
from ..gradients.adjoint import Layout, Source, Take, start
from ..ranks.collectives import checksum

_FIRST_CHECKED = 10  # calls; after these every one whose number is a power of two


class Call(NamedTuple):
    """One call of the wrapped model."""

    own: Any  # the arguments for this rank's rows; rank 0's on a rank without any
    chunks: int  # how many ranks, from rank 0 on, have rows
    fingerprints: dict[str, Any]  # of what has to be the same on all ranks, by name
    sources: list[Source]  # the inputs that have gradients


class Inputs:
    """The inputs of one wrapped model, which are cut along `dim`."""

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._calls = 0

    @_disable_dynamo
    def cut(self, arguments: tuple[Any, Any], device: torch.device) -> Call:
        """Each rank's part of a call's arguments, on `device`. A collective where a batch isn't cut as the call is.

        Tensors in tuples, lists and dicts are cut, as `nn.DataParallel` cuts them. If some are cut into fewer parts
        than others, the last ranks lack them.
        """
        fingerprints = self._fingerprints(arguments)
        counts = [nesting.count_chunks(part, world.world_size(), self._dim) for part in arguments]
        count = max(
            (found for found in counts if found is not None), default=world.world_size() if any(arguments) else 1
        )
        sources: list[Source] = []

        def own_rows(count: int, tensor: torch.Tensor) -> torch.Tensor:
            if not isinstance(tensor, Deferred) or not tensor.is_rows or not self._is_cut_alike(tensor, count):
                rows, tokens = _take_rows(materialize(tensor), self._dim, count, device)
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
        sizes = chunk_sizes(tensor.size(self._dim), world.world_size()) if tensor.batch_dim == self._dim else None
        return list(tensor.sizes) == sizes and sum(size > 0 for size in sizes) == count

    def _fingerprints(self, arguments: Any) -> dict[str, Any]:
        """Of tensors that no loader of ours made, in the first calls and ever more rarely then; of numbers and text."""
        self._calls += 1
        found: dict[str, Any] = {}
        leaves = nesting.leaves(arguments)
        checked = self._calls <= _FIRST_CHECKED or self._calls & (self._calls - 1) == 0
        for index, leaf in enumerate(leaves):
            if type(leaf) in (bool, int, float, str):
                found[f"argument {index + 1} of the wrapped model"] = repr(leaf)
            elif isinstance(leaf, torch.Tensor) and not isinstance(leaf, Deferred) and leaf.layout == torch.strided:
                name = f"the tensor that is argument {index + 1} of the wrapped model"
                found[name] = [list(leaf.shape), str(leaf.dtype), *(checksum(leaf).tolist() if checked else ())]
        return found


def _chunk(tensor: torch.Tensor, dim: int, count: int) -> Layout:
    """How a whole input lies on the ranks: as many rows as `torch.chunk` gives `count` replicas."""
    sizes = [size if rank < count else 0 for rank, size in enumerate(chunk_sizes(tensor.size(dim), world.world_size()))]
    shape = list(tensor.shape)
    shape[dim] = sizes[world.rank()] or sizes[0]
    return Layout(tuple(sizes), dim, tensor.size(dim), shape)


def _take_rows(
    tensor: torch.Tensor, dim: int, count: int, device: torch.device
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """This rank's chunk of `count` of a tensor that all ranks have, on `device`; rank 0's on a rank without any.

    And the token of its gradient, if it has one.
    """
    chunk = _chunk(tensor, dim, count)
    rows: torch.Tensor
    if torch.is_grad_enabled() and tensor.requires_grad:
        rows, token = Take.apply(tensor, chunk, True, start())
        return rows.to(device) if device.type == "cuda" else rows, [token]
    rows = chunk.take(tensor, borrow=True)
    if device.type == "cuda" and rows.device != device:
        return rows.to(device), []
    # A copy: what the module does to its input in place must not make the ranks' batches differ.
    return rows.clone(), []
