"""Shapes of deferred batches: what leaves the batch's dimension whole is done to the rows."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from ..base import nesting
from ..ranks.collectives import pick_rows
from ..ranks.exchange import exchange
from .deferred import Deferred, defer, defer_from, is_small, materialize
from .rowwise import is_deferred, own_rows, property_rule, rule, tokens_of


@rule("view", "reshape", "flatten", "unflatten")
def _reshaped(func: Any, args: Any, kwargs: Any) -> Any:
    batch, *rest = args
    if not is_deferred(batch) or not batch.numel() or any(isinstance(each, torch.dtype) for each in rest):
        return NotImplemented
    # The sizes that come out are the same for a tensor without memory.
    shape = func(torch.empty(batch.shape, device="meta"), *rest, **kwargs).shape
    before, total = math.prod(batch.shape[: batch.batch_dim]), batch.size(batch.batch_dim)
    starts = [d for d in range(len(shape)) if math.prod(shape[:d]) == before]
    # A row may become several (clips of frames), or several one, as long as no rank has a part of one.
    dims = [d for d in starts if not any(size * shape[d] % total for size in batch.sizes)]
    if not dims:
        return NotImplemented
    dim = max(dims, key=lambda d: shape[d] == total)
    own, *sizes = (size * shape[dim] // total for size in (batch.rows.size(batch.batch_dim), *batch.sizes))
    local = [own if d == dim else size for d, size in enumerate(shape)]
    # (Not by `func`: what was `contiguous` in between needn't be said of a single row, and is of all.)
    return defer_from(batch, batch.rows.reshape(local), dim, lambda whole: whole.reshape(shape), sizes)


@rule("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "unsqueeze", "squeeze", "t")
@rule("__getitem__", "expand", "repeat", "tile", "chunk", "split", "unbind", "tensor_split")
@rule("cat", "concat", "concatenate", "stack", "pad", "interpolate")
@property_rule("T", "mT")
def _shaped(func: Any, args: Any, kwargs: Any) -> Any:
    """Two probes without memory tell where the batch's dimension goes: one of its size, one with a row more."""
    found = [each for each in nesting.tensors((args, kwargs)) if is_deferred(each)]
    if not found:
        return NotImplemented
    if func is torch.Tensor.__getitem__ and not _is_basic(args[1]):
        return _picked(args[0], args[1])
    batch, total = found[0], found[0].size(found[0].batch_dim)
    if any((each.sizes, each.batch_dim, each.dim()) != (batch.sizes, batch.batch_dim, batch.dim()) for each in found):
        return NotImplemented
    shapes = [_shapes(func, args, kwargs, batch, total + more) for more in (0, 1)]
    dims = [_where(total, one, other) for one, other in zip(*shapes)]
    if None in dims or not dims:
        return NotImplemented
    one_of_many = len(nesting.tensors((args, kwargs))) > 1
    rows_args, rows_kwargs = nesting.map_tensors(lambda each: _rows(each, batch), (args, kwargs))
    rows = func(*rows_args, **rows_kwargs)

    def of_whole(index: int, whole: torch.Tensor) -> Any:
        """The same of the whole batch, which may stand in a list (`torch.cat([x])`)."""
        whole_args, whole_kwargs = nesting.map_tensors(lambda each: whole, (args, kwargs))
        made = func(*whole_args, **whole_kwargs)
        return made if isinstance(made, torch.Tensor) else made[index]

    def result(index: int, made: torch.Tensor) -> Deferred:
        dim = dims[index]
        assert dim is not None
        size = list(shapes[0][index])
        size[dim] = batch.rows.size(batch.batch_dim)
        if list(made.shape) != size:  # a single row's dimension may have been squeezed away
            made = made.reshape(size)
        if one_of_many:
            return defer(made, batch.sizes, dim, any(each.allows_reordered_sum for each in found), tokens_of(found))
        return defer_from(batch, made, dim, functools.partial(of_whole, index))

    if isinstance(rows, torch.Tensor):
        return result(0, rows)
    return type(rows)(result(index, each) for index, each in enumerate(rows))


def _is_basic(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or type(part) in (int, slice) for part in parts)


@rule("index_select")
def _selected(func: Any, args: Any, kwargs: Any) -> Any:
    tensor, dim, index = args if len(args) == 3 else (None, None, None)
    return _picked(tensor, index) if dim == 0 else NotImplemented


def _picked(batch: Any, index: Any) -> Any:
    """As many rows as there are, by their numbers (mixup's `x[permutation]`): each rank gets those that it needs."""
    index, *rest = index if isinstance(index, tuple) else (index,)
    if not is_deferred(batch) or is_small(batch) or batch.batch_dim != 0 or batch.rows.requires_grad:
        return NotImplemented
    if not isinstance(index, torch.Tensor) or index.dtype != torch.int64 or index.shape != (len(batch),):
        return NotImplemented
    if not all(type(part) is slice for part in rest):
        return NotImplemented
    numbers, total = materialize(index).tolist(), len(batch)
    if not all(-total <= number < total for number in numbers):
        return NotImplemented
    exchange(f"rows of a batch in another order ({zlib.crc32(repr(numbers).encode()):08x})")
    columns = (slice(None), *rest)
    picked = pick_rows(batch.rows[columns], batch.sizes, [number % total for number in numbers])
    return defer(picked, batch.sizes, 0, batch.allows_reordered_sum)


@rule("__setitem__")
def _set(func: Any, args: Any, kwargs: Any) -> Any:
    """Into a part of each row (cutmix's `x[:, :, a:b, c:d] = ...`), where nothing else may share the memory."""
    batch, index, value = args
    if not is_deferred(batch) or not batch.is_alone() or not _is_basic(index):
        return NotImplemented
    part = _shaped(torch.Tensor.__getitem__, (batch, index), {})
    if part is NotImplemented:
        return NotImplemented
    if is_deferred(value) and (value.sizes, value.batch_dim, value.dim()) == (part.sizes, part.batch_dim, part.dim()):
        value = value.rows
    elif isinstance(value, torch.Tensor):
        return NotImplemented
    part.rows[...] = value
    return None


def _rows(tensor: torch.Tensor, batch: Deferred) -> torch.Tensor:
    rows: torch.Tensor = tensor.rows if is_deferred(tensor) else own_rows(tensor, batch.sizes, batch.batch_dim)
    return rows


def _shapes(func: Any, args: Any, kwargs: Any, batch: Deferred, total: int) -> list[torch.Size]:
    """The shapes of what `func` makes of a batch of `total` rows; none where that can't be, or isn't so simple."""

    def probe(tensor: torch.Tensor) -> torch.Tensor:
        alike = tensor.dim() == batch.dim() and tensor.size(batch.batch_dim) == batch.size(batch.batch_dim)
        if not alike or (tensor.requires_grad and torch.is_grad_enabled() and not is_deferred(tensor)):
            raise ValueError("no row for each of the batch's")
        size = list(tensor.shape)
        size[batch.batch_dim] = total
        return torch.empty(size, dtype=tensor.dtype, device="meta")

    try:
        probe_args, probe_kwargs = nesting.map_tensors(probe, (args, kwargs))
        result = func(*probe_args, **probe_kwargs)
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError):
        return []  # the script's error, too: it is raised where the whole batch is asked for
    return [result.shape] if isinstance(result, torch.Tensor) else [each.shape for each in result]


def _where(total: int, one: Sequence[int], other: Sequence[int]) -> int | None:
    """The dimension that has one row for each of the batch's."""
    if len(one) != len(other):
        return None
    dims = [d for d, sizes in enumerate(zip(one, other)) if sizes[0] != sizes[1]]
    return dims[0] if len(dims) == 1 and (one[dims[0]], other[dims[0]]) == (total, total + 1) else None
