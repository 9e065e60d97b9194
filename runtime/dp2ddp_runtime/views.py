"""Shapes of deferred batches: what leaves the batch's dimension whole is done to the rows."""

from __future__ import annotations

import math
from typing import Any, Callable

import torch

from .deferred import Deferred, defer, defer_from
from .rowwise import is_deferred, property_rule, rows_of, rule


def _view(batch: Deferred, dim: int, of: Callable[..., Any], local: Callable[..., Any] | None = None) -> Any:
    return defer_from(batch, (local or of)(batch.rows), dim, of)


@rule("view", "reshape", "flatten", "unflatten", "view_as", "reshape_as")
def _reshaped(func: Any, args: Any, kwargs: Any) -> Any:
    batch, *rest = args
    if not is_deferred(batch) or any(isinstance(each, (torch.dtype, Deferred)) for each in (*rest, *kwargs.values())):
        return NotImplemented
    # The sizes that come out, and whether the strides allow it, are the same for a tensor without memory.
    shape = func(torch.empty(batch.shape, device="meta"), *rest, **kwargs).shape
    before = math.prod(batch.shape[: batch.batch_dim])
    total = batch.size(batch.batch_dim)
    dim = next((d for d in range(len(shape)) if math.prod(shape[:d]) == before and shape[d] == total), None)
    if dim is None:
        return NotImplemented
    local = [batch.rows.size(batch.batch_dim) if d == dim else size for d, size in enumerate(shape)]
    return _view(batch, dim, lambda whole: func(whole, *rest, **kwargs), lambda rows: rows.reshape(local))


@rule("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "unsqueeze", "squeeze", "t")
@property_rule("T", "mT")
def _dims_moved(func: Any, args: Any, kwargs: Any) -> Any:
    batch, *rest = args
    if not is_deferred(batch):
        return NotImplemented
    # A probe without memory, whose batch dimension alone is longer than 1, shows where that goes.
    probe = [7 if d == batch.batch_dim else 1 + (size > 1) for d, size in enumerate(batch.shape)]
    moved = func(torch.empty(probe, device="meta"), *rest, **kwargs).shape
    if list(moved).count(7) != 1:
        return NotImplemented
    if func in _SQUEEZES and batch.size(batch.batch_dim) == 1:
        return NotImplemented
    rows = batch.rows
    if func in _SQUEEZES and rows.size(batch.batch_dim) == 1:
        return (
            NotImplemented
            if not rest and not kwargs
            else _view(batch, list(moved).index(7), lambda t: func(t, *rest, **kwargs))
        )
    return _view(batch, list(moved).index(7), lambda t: func(t, *rest, **kwargs))


_SQUEEZES = (torch.squeeze, torch.Tensor.squeeze)


@rule("__getitem__")
def _item(func: Any, args: Any, kwargs: Any) -> Any:
    batch, index = args
    if not is_deferred(batch):
        return NotImplemented
    parts = list(index) if isinstance(index, tuple) else [index]
    if not all(part is None or part is Ellipsis or type(part) in (int, slice) for part in parts):
        return NotImplemented
    if Ellipsis not in parts:
        parts.append(Ellipsis)
    taken = batch.dim() - sum(part is not None and part is not Ellipsis for part in parts)
    position = parts.index(Ellipsis)
    parts[position : position + 1] = [slice(None)] * taken
    source, target = -1, -1
    for place, part in enumerate(parts):
        source += part is not None
        target += type(part) is not int
        if part is not None and source == batch.batch_dim:
            if type(part) is not slice or not _is_everything(part, batch.size(source)):
                return NotImplemented
            parts[place] = slice(None)
            return _view(batch, target, lambda whole: whole[tuple(parts)])
    return NotImplemented


def _is_everything(part: slice, total: int) -> bool:
    try:
        return part.indices(total) == (0, total, 1)
    except TypeError:  # bounds that are tensors
        return False


@rule("expand", "repeat", "tile")
def _expanded(func: Any, args: Any, kwargs: Any) -> Any:
    batch, *rest = args
    given = list(rest[0]) if rest and isinstance(rest[0], (tuple, list)) else list(rest)
    if not is_deferred(batch) or kwargs or not all(type(each) is int for each in given):
        return NotImplemented
    place = len(given) - (batch.dim() - batch.batch_dim)
    if place < 0 or given[place] not in ((-1, batch.size(batch.batch_dim)) if func is torch.Tensor.expand else (1,)):
        return NotImplemented
    local = [-1 if func is torch.Tensor.expand and d == place else size for d, size in enumerate(given)]
    return _view(batch, place, lambda whole: func(whole, *given), lambda rows: func(rows, *local))


@rule("chunk", "split", "unbind", "tensor_split")
def _pieces(func: Any, args: Any, kwargs: Any) -> Any:
    batch, *rest = args
    names = {torch.unbind: 0, torch.Tensor.unbind: 0}
    given = kwargs.get("dim", rest[names.get(func, 1)] if len(rest) > names.get(func, 1) else 0)
    if not is_deferred(batch) or type(given) is not int or given % batch.dim() == batch.batch_dim:
        return NotImplemented
    pieces = func(batch.rows, *rest, **kwargs)
    removed = names.get(func) == 0 and given % batch.dim() < batch.batch_dim
    dim = batch.batch_dim - removed

    def piece(index: int) -> Any:
        return _view(batch, dim, lambda whole: func(whole, *rest, **kwargs)[index], lambda _: pieces[index])

    return type(pieces)(map(piece, range(len(pieces))))


@rule("cat", "concat", "concatenate", "stack")
def _joined(func: Any, args: Any, kwargs: Any) -> Any:
    named = dict(zip(("tensors", "dim"), args), **kwargs)
    tensors, given = named.pop("tensors", None), named.pop("dim", 0)
    batches = [each for each in tensors or () if is_deferred(each)]
    if (
        named
        or not batches
        or type(given) is not int
        or len({(each.sizes, each.batch_dim, each.dim()) for each in batches}) > 1
    ):
        return NotImplemented
    batch = batches[0]
    stacks = func is torch.stack
    dim = given % (batch.dim() + stacks)
    after = batch.dim() - 1 - batch.batch_dim
    rows = [rows_of(each, batch.sizes, after) if each.dim() == batch.dim() else NotImplemented for each in tensors]
    alike = all(
        each is not NotImplemented and each.size(batch.batch_dim) == rows[0].size(batch.batch_dim) for each in rows
    )
    if (not stacks and dim == batch.batch_dim) or not alike:
        return NotImplemented
    moved = batch.batch_dim + (stacks and dim <= batch.batch_dim)
    return defer(func(rows, dim), batch.sizes, moved, any(each.rounds for each in batches))
