"""Large outputs, which stay on their ranks up to torch's losses, sums and means.

A closed list; anything else, writes into them above all, gathers the whole with its gradient. The gradient of a sum
over the ranks is each rank's own: `Total` and `Share` are each other's adjoint.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, Callable

import torch
from torch._compile import _disable_dynamo
from torch.autograd import Function
from torch.nn import functional as F  # noqa: N812

from . import gradients, place, rows
from .gradients import HALF, Gather, Layout
from .nesting import nested, tensors
from .rows import Rows, cut
from .world import all_gather, exchange, world

T = torch.Tensor
#: Bytes of a whole output that is worth being kept apart.
LARGE = 1 << 20


def output(rows: T, layout: Layout, anchors: Sequence[T]) -> T:
    """The whole output of which each rank has computed its rows. Its gradient is the rows'. No collective.

    Args:
        rows: this rank's; on one that has none, any, whose gradients are 0.
        layout: how many rows each rank has, along dimension 0.
        anchors: what takes part in each collective of a backward whatever the rows have used (`gradients`).
    """
    count = layout.sizes[world.rank] or next(filter(None, layout.sizes), 0)
    if len(rows) != count:  # of a rank without any, whose module gave others than rank 0's
        rows = torch.cat([rows[:count], rows.new_zeros([max(0, count - len(rows)), *rows.shape[1:]])])
    new: T = _new(rows, layout.sizes, tuple(anchors))
    return new


def _new(rows: T, sizes: Sequence[int], anchors: tuple[T, ...], source: Any = None, sent: Any = None) -> Any:
    if rows.requires_grad and torch.is_grad_enabled():
        new = _Attach.apply(rows, tuple(sizes), source, *anchors)
    else:
        new, anchors = Output(rows.detach(), sizes, source, sent), ()
    new._anchors, new._used = anchors, False
    return new


class _Attach(Gather):
    """`Gather` of the rows, with the wrapper as the whole: C++, and functions of the script's own, see that graph."""

    @staticmethod
    def forward(ctx: Any, rows: T, sizes: Any, source: Any = None, *anchors: T) -> Any:
        Gather.forward(ctx, rows, Layout(sizes, 0), rows, *anchors)
        return Output(rows, sizes, source)


class Output(Rows):
    """Rows with a graph, or what comes of such ones without."""

    _anchors: tuple[T, ...]
    _used: bool  # whether something has been computed from the rows, of which the whole knows nothing

    @classmethod
    @_disable_dynamo
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asked = tensors(args[1:] if func is torch.autograd.grad else args[:1], Rows) if func in _ASKS else []
        if any(isinstance(each, Output) and each._used for each in asked):
            raise RuntimeError(
                f"{place.line()} asks for the gradient of an output from which a loss has been computed already, "
                "on each rank's rows: do it before the loss, or write `out = out.clone()` behind the model's call"
            )
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def _on_shards(cls, func: Any, args: Any, kwargs: Any, found: list[Any]) -> Any:
        name = rows.name_of(func)
        graph = any(each._rows.requires_grad for each in found)
        rule = _LOSSES.get(func) or _RULES.get(name)
        if rule is not None:
            done = rule(func, args, kwargs, found)
        elif graph and name not in _WITH_GRAPH:
            return NotImplemented
        else:
            done = super()._on_shards(func, args, kwargs, found)
        if graph and any(map(rows.has_graph, tensors(done))):
            for each in found:
                each._used = True
        return done

    def made(self, rows: T, sizes: Sequence[int], view: Callable[[T], T] | None = None, sent: Any = None) -> Any:
        return _new(rows, sizes, self._anchors, None if view is None else (self, view), sent)

    def _take(self, value: T, ordinary: bool = True) -> None:
        if self._rows.requires_grad and not value.requires_grad:
            with torch.inference_mode(False), torch.enable_grad():
                value = Gather.apply(self._rows, Layout(self._sizes, 0), value, *self._anchors)
        super()._take(value, ordinary and not self._used)


_ASKS = (torch.autograd.grad, T.register_hook, T.retain_grad)
_WITH_GRAPH = {
    *rows.LIKE,
    *rows.MOVES,
    *rows.VIEWS,
    *rows.RESHAPES,
    *rows.COMPARISONS,
    "__getitem__",
    "interpolate",
}


# ---- within a row ----------------------------------------------------------------------------------------------------


def _along(func: Any, args: Any, kwargs: Any, found: list[Any]) -> Any:
    """Along other dimensions than the batch's: to rounding what it is for the whole batch."""
    dims = kwargs.get("dim", args[1] if len(args) > 1 else None)
    dims = [dims] if type(dims) is int else dims
    batch = args[0] if args else kwargs.get("input")
    if (
        not isinstance(dims, (list, tuple))
        or not dims
        or not isinstance(batch, Rows)
        or len(tensors((args, kwargs))) > 1
    ):
        return NotImplemented
    if any(type(dim) is not int or not dim % batch._rows.dim() for dim in dims):
        return NotImplemented
    made = func(*nested(rows.own_rows, args, Rows), **nested(rows.own_rows, kwargs, Rows))
    if isinstance(made, T):
        return batch.made(made, batch._sizes)
    return type(made)([batch.made(each, batch._sizes) for each in made])


# ---- over all rows ---------------------------------------------------------------------------------------------------


class Total(Function):
    """A rank's sum in, the sum of all ranks' out; beside it, without a gradient, of what its mean is divided by.

    A collective. A rank without rows adds nothing.
    """

    @staticmethod
    def forward(ctx: Any, own: T, weight: Any, sizes: tuple[int, ...], kind: str, *anchors: T) -> Any:
        ctx.sizes, ctx.kind = sizes, kind
        ctx.anchors = [(each.dtype, each.device) for each in anchors]
        ctx.set_materialize_grads(False)
        summed, total = _summed(own, weight, sizes, kind)
        ctx.mark_non_differentiable(total)
        return summed, total

    @staticmethod
    def backward(ctx: Any, grad: Any, _: Any) -> Any:
        if grad is None:
            return (None,) * (4 + len(ctx.anchors))
        gradients.OuterBackward.begin()
        own = Share.apply(grad, ctx.sizes, ctx.kind)
        anchors = (torch.zeros(0, dtype=kind, device=device) for kind, device in ctx.anchors)
        return (own, None, None, None, *anchors)


class Share(Function):
    """A value that all ranks have in, the same out for this rank's rows; 0 where it has none."""

    @staticmethod
    def forward(ctx: Any, grad: T, sizes: tuple[int, ...], kind: str) -> T:
        ctx.sizes, ctx.kind = sizes, kind
        return grad * int(sizes[world.rank] > 0)

    @staticmethod
    def backward(ctx: Any, own: T) -> Any:
        return Total.apply(own, None, ctx.sizes, f"the gradient of {ctx.kind}")[0], None, None


def _summed(own: T, weight: Any, sizes: tuple[int, ...], kind: str) -> tuple[T, T]:
    """In double precision, in the order of the ranks: the same bits on all of them."""
    other = own.new_zeros(()) if weight is None else weight
    flat = torch.stack([own.detach().double(), other.detach().double()])
    if flat.device.type == "cpu":
        every = [each.tensors[0] for each in exchange(kind, None, [flat])]
    else:
        every = all_gather(flat)  # no copy to the host
    summed = torch.stack([each for each, size in zip(every, sizes) if size]).sum(0).to(own.dtype)
    return summed[0], summed[1]


def _total(own: T, weight: Any, found: list[Any], kind: str) -> Any:
    anchors = {id(each): each for batch in found if isinstance(batch, Output) for each in batch._anchors}
    return Total.apply(own, weight, found[0]._sizes, kind, *anchors.values())


def _reduced(func: Any, args: Any, kwargs: Any, found: list[Any]) -> Any:
    batch = args[0] if args else None
    if len(args) > 1 or "dim" in kwargs or "axis" in kwargs:
        return _along(func, args, kwargs, found)
    if not isinstance(batch, Rows) or batch._rows.is_complex() or kwargs.get("out") is not None:
        return NotImplemented
    is_sum = func.__name__ == "sum"
    dtype = func(batch._rows.new_ones(1), **kwargs).dtype
    if dtype in HALF:  # too narrow for sums that are divided afterwards
        return NotImplemented
    own = torch.sum(batch._rows, **{**kwargs, "dtype": dtype})
    summed, _ = _total(own, None, found, f"{func.__name__} of an output")
    return summed if is_sum else summed / math.prod(rows.shape_of(batch))


def _weight_of_classes(call: dict[str, Any], own: dict[str, Any], shape: Sequence[int]) -> Any:
    """What the mean of `cross_entropy` and `nll_loss` is divided by: this rank's part of it; or all of it, a number.

    See https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html.
    """
    target, weight = own["target"], own["weight"]
    if target.is_floating_point():  # probabilities
        return torch.Size(shape).numel() / shape[1]
    counted = target != call["ignore_index"]
    return counted.sum() if weight is None else weight[target[counted]].sum()


def _weight_of_elements(call: dict[str, Any], own: dict[str, Any], shape: Sequence[int]) -> Any:
    return shape[0] if call["reduction"] == "batchmean" else torch.Size(shape).numel()


_BY_CLASS = (F.cross_entropy, F.nll_loss)
_DIVIDED_BY_WEIGHT = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)
_OTHERS = (F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.kl_div, F.soft_margin_loss)


def _loss(func: Any, args: Any, kwargs: Any, found: list[Any]) -> Any:
    """A loss: the sums over the ranks' rows, put together. A collective, unless it is one of each row's."""
    call, batch = _arguments(func, args, kwargs), found[0]
    own = _own_arguments(func, call, batch) if call else None
    if own is None:
        return NotImplemented
    if call["reduction"] == "none":
        each = func(**own)
        output = next(each for each in found if isinstance(each, Output))
        return output.made(each, batch._sizes) if len(each.shape) else NotImplemented
    total = func(**{**own, "reduction": "sum"})
    if total.dtype in HALF:
        return NotImplemented
    weigh = _weight_of_classes if func in _BY_CLASS else _weight_of_elements
    weight = weigh(call, own, rows.shape_of(batch)) if call["reduction"] != "sum" else 1
    is_tensor = isinstance(weight, T)
    summed, divisor = _total(total, weight if is_tensor else None, found, func.__name__)
    return summed / (divisor if is_tensor else weight)


def _arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    bound = inspect.signature(func).bind(*args, **kwargs)
    bound.apply_defaults()
    call = dict(bound.arguments)
    if call.pop("size_average", None) is not None or call.pop("reduce", None) is not None:
        return {}
    return call if call["reduction"] in ("none", "sum", "mean", "batchmean") else {}


def _own_arguments(func: Any, call: dict[str, Any], batch: Rows) -> dict[str, Any] | None:
    """The arguments for this rank's rows; None where some can't be cut, or have gradients of their own."""
    own, shape = dict(call), rows.shape_of(batch)
    for name, value in call.items():
        if isinstance(value, Rows):
            own[name] = value._rows
        elif not isinstance(value, T):
            continue
        elif value.requires_grad and torch.is_grad_enabled():
            return None
        elif name in ("input", "target"):
            if not value.dim() or len(value) != shape[0]:
                return None
            own[name] = cut(value, batch._sizes)
        elif value.dim() >= len(shape) or func in _DIVIDED_BY_WEIGHT:
            return None  # a weight that may vary along the batch, or that the mean is divided by
    if func in _BY_CLASS:
        return own if own["input"].dim() > 1 else None
    return own if own["input"].shape == own["target"].shape else None


_LOSSES = dict.fromkeys((*_BY_CLASS, *_DIVIDED_BY_WEIGHT, *_OTHERS), _loss)
_RULES: dict[str, Any] = {
    **dict.fromkeys("softmax log_softmax argmax argmin amax amin max min".split(), _along),
    "sigmoid": rows.tried,
    "sum": _reduced,
    "mean": _reduced,
}
