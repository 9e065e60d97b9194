"""What keeps the rows of a batch apart, and so can be done to a rank's own rows: a table of torch's functions.

Each gives, bit for bit, the rows of what it gives for the whole batch (`tests/runtime/test_rowwise.py`); those in
`_ROUNDED` only to rounding, and are used for a model's outputs alone. Random functions are in none of the lists: they
draw for the whole batch. Whatever isn't in the table gets the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch.nn import functional as F  # noqa: N812

from ..base import nesting
from .deferred import RULES, Deferred, defer, defer_from, is_small

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

_SPACES = (torch, torch.Tensor, torch.special, F)

# Correctly rounded by IEEE 754, or no arithmetic at all: the same for any number of rows, in vector registers or out.
_EXACT = """
    add sub subtract rsub mul multiply div divide true_divide floor_divide neg negative abs absolute sign
    __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __add__ __sub__ __mul__ __truediv__ __floordiv__
    __radd__ __rsub__ __rmul__ __rdiv__ __rtruediv__ __rfloordiv__ __neg__ __abs__ __invert__ __and__ __or__ __xor__
    clamp clip clamp_min clamp_max maximum minimum square sqrt floor ceil round trunc frac relu
    eq ne lt le gt ge not_equal less less_equal greater greater_equal isnan isinf isfinite
    logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor where masked_fill
""".split()
_IN_PLACE = "add_ sub_ mul_ div_ neg_ abs_ clamp_ clamp_min_ clamp_max_ sqrt_ relu_ masked_fill_".split()
_ROUNDED = """
    exp expm1 log log1p log2 log10 sigmoid tanh sin cos erf rsqrt reciprocal pow __pow__ __rpow__ logsigmoid
    softplus leaky_relu elu selu gelu silu hardtanh relu6 logit special.expit
""".split()
_ALONG = "softmax log_softmax argmax argmin amax amin max min cumsum".split()
_COPIES = """
    to cuda cpu float double half bfloat16 int long short char byte bool type type_as clone contiguous pin_memory
""".split()
_META = """
    size dim ndimension numel nelement __len__ is_floating_point is_complex is_signed element_size get_device
""".split()
_META_PROPERTIES = """
    shape dtype device ndim layout is_cuda is_cpu is_sparse is_quantized is_mkldnn is_meta grad_fn grad is_leaf
""".split()
_LIKE = """
    zeros_like ones_like full_like empty_like rand_like randn_like randint_like
    new_zeros new_ones new_full new_empty new_tensor new
""".split()


def _functions(names: Iterable[str]) -> Iterable[Any]:
    for name in names:
        for space in _SPACES:
            function = getattr(space, name, None)
            if function is not None:
                yield function


def rule(*names: str) -> Callable[[Any], Any]:
    """Enter a function into the table, under torch's names."""

    def enter(function: Any) -> Any:
        RULES.update(dict.fromkeys(_functions(names), function))
        return function

    return enter


def property_rule(*names: str) -> Callable[[Any], Any]:
    def enter(function: Any) -> Any:
        RULES.update({getattr(torch.Tensor, name).__get__: function for name in names if hasattr(torch.Tensor, name)})
        return function

    return enter


def is_deferred(value: Any) -> TypeGuard[Deferred]:
    """Whether it is a batch of which the rows are to be used."""
    return isinstance(value, Deferred) and value.is_rows


def _made(parent: Deferred, rows: torch.Tensor, dim: int, view_fn: Any) -> Any:
    """A copy: what is small comes along with what it was made from, what is large is by itself."""
    if rows is parent.rows:
        return parent
    if is_small(parent):
        return defer_from(parent, rows, dim, view_fn)
    return defer(rows, parent.sizes, dim, parent.allows_reordered_sum, parent.tokens)


# --- what a tensor is -----------------------------------------------------------------------------------------------


@rule(*_META)
@property_rule(*_META_PROPERTIES)
def _told_by_wrapper(func: Any, args: Any, kwargs: Any) -> Any:
    if not isinstance(args[0], Deferred) or args[0].is_materialized:
        return NotImplemented
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


@rule("is_contiguous", "is_pinned")
@property_rule("requires_grad")
def _told_by_rows(func: Any, args: Any, kwargs: Any) -> Any:
    if not is_deferred(args[0]) or (args[0].batch_dim and func is torch.Tensor.is_contiguous):
        return NotImplemented  # (with the batch in an inner dimension, a single row is contiguous where all aren't)
    told: bool = func(args[0].rows, *args[1:], **kwargs)
    return told and (func is not torch.Tensor.is_contiguous or _is_dense(args[0]))


def _is_dense(batch: Deferred) -> bool:
    """Whether rows follow each other without a gap, which a single one says by its stride alone: alike on all ranks."""
    return sum(batch.sizes) == 1 or batch.rows.stride(0) == math.prod(batch.shape[1:])


@rule(*_LIKE)
def _like(func: Any, args: Any, kwargs: Any) -> Any:
    """A new tensor of the same kind, for which the contents don't matter."""
    batch, *rest = args
    if not is_deferred(batch) or nesting.tensors((rest, kwargs)):
        return NotImplemented
    if batch.batch_dim or not (batch.rows.is_contiguous() and _is_dense(batch)):
        return NotImplemented
    return func(torch.empty(batch.shape, dtype=batch.dtype, device=batch.device), *rest, **kwargs)


# --- copies and moves -----------------------------------------------------------------------------------------------


@rule(*_COPIES)
def _copied(func: Any, args: Any, kwargs: Any) -> Any:
    batch, *rest = args
    if not is_deferred(batch) or any(isinstance(each, Deferred) and not each.is_rows for each in rest):
        return NotImplemented

    def of(tensor: torch.Tensor) -> Any:
        # Another tensor here is one whose type is asked for.
        return func(tensor, *[each.rows if isinstance(each, Deferred) else each for each in rest], **kwargs)

    rows = of(batch.rows)
    if func is torch.Tensor.contiguous and batch.batch_dim:  # a copy or not: that is for the whole batch to say
        return defer_from(batch, rows, batch.batch_dim, of)
    if func is torch.Tensor.contiguous and rows is batch.rows and not _is_dense(batch):
        rows = rows.clone(**{"memory_format": torch.contiguous_format, **kwargs})
    return _made(batch, rows, batch.batch_dim, of) if isinstance(rows, torch.Tensor) else rows


@rule("record_stream")
def _recorded(func: Any, args: Any, kwargs: Any) -> Any:
    """For a loader that reads ahead on a stream of its own: it is the rows' memory that lives on."""
    batch, *rest = args
    func(batch.rows, *rest, **kwargs)
    return NotImplemented if batch.is_materialized else None


@rule("detach")
@property_rule("data")
def _detached(func: Any, args: Any, kwargs: Any) -> Any:
    if not is_deferred(args[0]):
        return NotImplemented
    return defer_from(args[0], func(args[0].rows), args[0].batch_dim, func)


# --- elementwise ----------------------------------------------------------------------------------------------------


def _elementwise(func: Any, args: Any, kwargs: Any) -> Any:
    aligned = _align([*args, *kwargs.values()])
    if aligned is None or kwargs.get("out") is not None or kwargs.get("inplace") or kwargs.get("alpha", 1) != 1:
        return NotImplemented
    batch, dim, operands = aligned
    named = dict(zip(kwargs, operands[len(args) :]))
    rows = func(*operands[: len(args)], **named)
    if not isinstance(rows, torch.Tensor):
        return NotImplemented
    tensors = sum(isinstance(each, torch.Tensor) for each in (*args, *kwargs.values()))
    if tensors == 1 and args and args[0] is batch:
        return _made(batch, rows, dim, lambda whole: func(whole, *args[1:], **kwargs))
    batches = [each for each in (*args, *kwargs.values()) if isinstance(each, Deferred)]
    return defer(rows, batch.sizes, dim, any(each.allows_reordered_sum for each in batches), tokens_of(batches))


def tokens_of(batches: Iterable[Deferred]) -> list[torch.Tensor]:
    """What goes with the gradients of all of them."""
    return [token for each in batches for token in each.tokens]


def _align(operands: Sequence[Any]) -> tuple[Deferred, int, list[Any]] | None:
    """This rank's rows of each operand, as broadcasting lays them side by side; None where it is not that simple.

    Returns:
        A deferred operand, the dimension along which the result's rows lie, and the operands.
    """
    tensors = [each for each in operands if isinstance(each, torch.Tensor)]
    batches = [each for each in tensors if is_deferred(each)]
    if not batches or any(isinstance(each, (tuple, list, dict)) for each in operands):
        return None
    behind = {each.dim() - 1 - each.batch_dim for each in batches}  # dimensions behind the batch's
    if len(behind) > 1 or len({each.sizes for each in batches}) > 1:
        return None
    (after,) = behind
    dim = max(each.dim() for each in tensors) - 1 - after
    rows = [rows_of(each, batches[0].sizes, after) if isinstance(each, torch.Tensor) else each for each in operands]
    return (batches[0], dim, rows) if all(each is not NotImplemented for each in rows) else None


def rows_of(tensor: torch.Tensor, sizes: tuple[int, ...], after: int) -> Any:
    if is_deferred(tensor):
        return tensor.rows
    if tensor.requires_grad and torch.is_grad_enabled():
        return NotImplemented  # its gradient is to be the whole batch's
    tensor = tensor.whole() if isinstance(tensor, Deferred) else tensor
    dim = tensor.dim() - 1 - after
    return tensor if dim < 0 or tensor.size(dim) == 1 else own_rows(tensor, sizes, dim)


def own_rows(tensor: torch.Tensor, sizes: tuple[int, ...], dim: int) -> Any:
    """This rank's rows, or rank 0's, of a tensor that every rank has; NotImplemented if it has another size."""
    if tensor.size(dim) != sum(sizes):
        return NotImplemented
    rows = nesting.own_chunk(sizes)
    return tensor.narrow(dim, rows.start, rows.stop - rows.start)


RULES.update(dict.fromkeys(_functions(_EXACT), _elementwise))


def _rounded(func: Any, args: Any, kwargs: Any) -> Any:
    batches = [each for each in (*args, *kwargs.values()) if is_deferred(each)]
    return _elementwise(func, args, kwargs) if all(each.allows_reordered_sum for each in batches) else NotImplemented


RULES.update(dict.fromkeys(_functions(_ROUNDED), _rounded))


@rule(*_IN_PLACE)
def _in_place(func: Any, args: Any, kwargs: Any) -> Any:
    """Into the rows themselves, where nothing else may share their memory."""
    batch = args[0]
    if not is_deferred(batch) or not batch.is_alone():
        return NotImplemented
    aligned = _align([*args, *kwargs.values()])
    if aligned is None or kwargs.get("alpha", 1) != 1 or aligned[1] != batch.batch_dim:
        return NotImplemented
    func(*aligned[2][: len(args)], **dict(zip(kwargs, aligned[2][len(args) :])))
    return batch


# --- within a row ---------------------------------------------------------------------------------------------------


@rule("flip")
def _flipped(func: Any, args: Any, kwargs: Any) -> Any:
    batch, *rest = args
    dims = kwargs.get("dims", rest[0] if len(rest) == 1 else rest)
    if not is_deferred(batch) or batch.batch_dim in [d % batch.dim() for d in ([dims] if type(dims) is int else dims)]:
        return NotImplemented
    return defer(
        func(batch.rows, *rest, **kwargs), batch.sizes, batch.batch_dim, batch.allows_reordered_sum, batch.tokens
    )


@rule(*_ALONG)
def along(func: Any, args: Any, kwargs: Any) -> Any:
    """Along another dimension than the batch's, of a model's outputs."""
    batch: Any = args[0] if args else None
    dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if (
        not is_deferred(batch)
        or not batch.allows_reordered_sum
        or type(dim) is not int
        or nesting.tensors((args[1:], kwargs))
    ):
        return NotImplemented
    dim %= batch.dim()
    if dim == batch.batch_dim:
        return NotImplemented
    found = func(batch.rows, *args[1:], **kwargs)
    rows = found if isinstance(found, torch.Tensor) else found[0]
    moved = batch.batch_dim - (rows.dim() < batch.dim() and dim < batch.batch_dim)
    if isinstance(found, torch.Tensor):
        return defer(found, batch.sizes, moved, True, batch.tokens)
    return type(found)([defer(each, batch.sizes, moved, True, batch.tokens) for each in found])
