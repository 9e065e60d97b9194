"""Losses and sums of large outputs, computed on each rank's rows and summed over the ranks; gradients of batches."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from typing import Any, Callable

import torch
from torch.nn import functional as F  # noqa: N812

from ..base import world
from ..gradients.adjoint import Copy, join
from ..gradients.summing import Bucket
from ..ranks.exchange import exchange
from .deferred import RULES, Deferred, defer, is_small, materialize
from .rowwise import along, is_deferred, own_rows, rule, tokens_of


class _Total(torch.autograd.Function):
    """A rank's sum in, the sum of all ranks' out: `adjoint.Sum`, by an exchange. Backward: `adjoint.Copy`.

    Beside it, and without a gradient, what its mean is divided by. A rank without rows adds nothing.
    """

    @staticmethod
    def forward(
        own: torch.Tensor, weight: torch.Tensor, token: torch.Tensor, sizes: tuple[int, ...], kind: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [part for part, size in zip(exchange(kind, [own, weight]), sizes) if size]
        summed, total = (_sum(column, like) for column, like in zip(zip(*parts), (own, weight)))
        return summed, total

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *_, token, sizes, _ = inputs
        ctx.has_rows = int(sizes[world.rank()] > 0)
        ctx.token = token
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        token, own = Copy.apply(Bucket(), ctx.token, grad)
        return own * ctx.has_rows, None, token, None, None


def _sum(column: tuple[torch.Tensor, ...], like: torch.Tensor) -> torch.Tensor:
    stacked = torch.stack([each.to(like.device) for each in column])
    return (stacked.double().sum() if stacked.is_floating_point() else stacked.sum()).to(like.dtype)


def _token(batches: Iterable[Deferred]) -> torch.Tensor:
    """What goes with the gradients of all of them; without any the sum has none, either."""
    tokens = tokens_of(batches)
    return join(tokens) if tokens else torch.empty(0)


_HALF = (torch.float16, torch.bfloat16)  # too narrow for sums that are divided afterwards
_ONE = torch.ones((), dtype=torch.int64)


@rule("sum", "mean")
def _reduced(func: Any, args: Any, kwargs: Any) -> Any:
    """Of all elements of a model's output; and of whole numbers, whose sum is the same in any order."""
    batch, *rest = args
    if rest or "dim" in kwargs or "axis" in kwargs:
        return along(func, args, kwargs)
    if not is_deferred(batch) or kwargs.get("out") is not None:
        return NotImplemented
    counts = func in (torch.sum, torch.Tensor.sum) and not (batch.is_floating_point() or batch.is_complex())
    if not batch.allows_reordered_sum and not (counts and not is_small(batch)):
        return NotImplemented
    dtype = func(batch.rows.new_ones(1), **kwargs).dtype
    own = torch.sum(batch.rows, **{**kwargs, "dtype": torch.float32 if dtype in _HALF else dtype})
    summed, _ = _Total.apply(own, _ONE, _token([batch]), batch.sizes, "a sum over a batch")
    return (summed if func in (torch.sum, torch.Tensor.sum) else summed / batch.numel()).to(dtype)


def _weight_of_classes(call: dict[str, Any], rows: dict[str, Any], shape: torch.Size) -> Any:
    """What the mean of `cross_entropy` and `nll_loss` divides by: this rank's part of it; or all of it, a number.

    See https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html.
    """
    target, weight = rows["target"], rows["weight"]
    if target.is_floating_point():  # probabilities
        return shape.numel() / shape[1 if len(shape) > 1 else 0]
    counted = target != call["ignore_index"]
    if weight is None:
        return counted.sum()
    return weight[target[counted]].sum()


def _weight_of_elements(call: dict[str, Any], rows: dict[str, Any], shape: torch.Size) -> Any:
    return shape[0] if call["reduction"] == "batchmean" else shape.numel()


_BY_CLASS = "cross_entropy nll_loss".split()
_BY_ELEMENT = """
    mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
    soft_margin_loss
""".split()
_DIVIDED_BY_WEIGHT = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)
_REDUCTIONS = ("none", "sum", "mean", "batchmean")


def _loss(func: Any, args: Any, kwargs: Any, weigh: Callable[..., Any]) -> Any:
    """A loss of a model's output: the sums over the ranks' rows, put together."""
    batch: Any = args[0] if args else kwargs.get("input")
    if not is_deferred(batch) or not batch.allows_reordered_sum or batch.batch_dim != 0:
        return NotImplemented
    call = _arguments(func, args, kwargs)
    rows = _own(func, call, batch) if call else None
    if rows is None or (weigh is _weight_of_elements and call["target"].shape != batch.shape):
        return NotImplemented
    if call["reduction"] == "none":
        each = func(**rows)
        found = [value for value in call.values() if isinstance(value, Deferred)]
        return defer(each, batch.sizes, 0, True, tokens_of(found)) if each.dim() else NotImplemented
    own_sum = func(**{**rows, "reduction": "sum"})
    dtype = own_sum.dtype
    if dtype in _HALF:
        own_sum = func(**{**{name: _wide(value) for name, value in rows.items()}, "reduction": "sum"})
    weight = weigh(call, rows, batch.shape) if call["reduction"] != "sum" else 1
    own = weight.detach() if isinstance(weight, torch.Tensor) else _ONE
    token = _token(each for each in call.values() if isinstance(each, Deferred))
    summed, total = _Total.apply(own_sum, own, token, batch.sizes, func.__name__)
    return (summed / (total if isinstance(weight, torch.Tensor) else weight)).to(dtype)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in _HALF else value


def _arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    bound = inspect.signature(func).bind(*args, **kwargs)
    bound.apply_defaults()
    call = dict(bound.arguments)
    if call.pop("size_average", None) is not None or call.pop("reduce", None) is not None:
        return {}
    call.pop("reduce", None)
    return call if call["reduction"] in _REDUCTIONS else {}


def _own(func: Any, call: dict[str, Any], batch: Deferred) -> dict[str, Any] | None:
    """The arguments for this rank's rows; None where some can't be cut, or have gradients of their own."""
    rows = dict(call)
    for name, value in call.items():
        if not isinstance(value, torch.Tensor):
            continue
        if value.requires_grad and torch.is_grad_enabled() and not is_deferred(value):
            return None
        if is_deferred(value):
            if value.sizes != batch.sizes or value.batch_dim != 0:
                return None
            rows[name] = value.rows
        elif name == "target":
            rows[name] = own_rows(materialize(value), batch.sizes, 0) if value.dim() else NotImplemented
        elif value.dim() > 1 or value.dim() == batch.dim() or func in _DIVIDED_BY_WEIGHT:
            return None  # a weight that may vary along the batch, or that the mean is divided by
        else:
            rows[name] = materialize(value)
        if rows[name] is NotImplemented:
            return None
    return rows


def _enter(names: list[str], weigh: Callable[..., Any]) -> None:
    for name in names:
        function = getattr(F, name)
        RULES[function] = functools.partial(_loss, weigh=weigh)


_enter(_BY_CLASS, _weight_of_classes)
_enter(_BY_ELEMENT, _weight_of_elements)


# --- what autograd is asked about batches: their gradients, and where a backward begins ---


@rule("requires_grad_")
def _made_a_leaf(func: Any, args: Any, kwargs: Any) -> Any:
    """A batch that gets a gradient of its own is a tensor as any other: for C++ as well, and for who keeps it."""
    batch, *rest = args
    wanted = (*rest, *kwargs.values(), True)[0]
    if not wanted or not isinstance(batch, Deferred) or batch.requires_grad or not hasattr(torch.utils, "swap_tensors"):
        return NotImplemented
    batch.become_plain()
    return func(*args, **kwargs)


RULES[torch.Tensor.requires_grad.__set__] = _made_a_leaf  # type: ignore[attr-defined]


def _variable(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """`Variable(batch, requires_grad=True)`, a leaf as well, which C++ makes without asking for a rule."""
    if kwargs.get("requires_grad", args[1:2] not in ((), (False,))):
        args, kwargs = materialize((args, kwargs))
    return type.__call__(cls, *args, **kwargs)


type(torch.autograd.Variable).__call__ = _variable  # type: ignore[assignment]


def _roots(value: Any) -> Any:
    """The same nesting with whole batches, where their graphs begin."""
    with torch.enable_grad():  # which is off in a backward
        return materialize(value)


def _backward(func: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = _roots((args, kwargs))
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _gradient(
    func: Any, outputs: Any, inputs: Any, grad_outputs: Any = None, *, allow_unused: Any = None, **kwargs: Any
) -> Any:
    """`torch.autograd.grad`. A batch's gradient is that of its rows, and of the tokens that go with these."""
    batches = {i: each for i, each in enumerate(inputs) if isinstance(each, Deferred) and each.rows.requires_grad}
    tokens = list({id(token): token for each in batches.values() for token in each.tokens}.values())
    asked = [batches[i].rows if i in batches else _roots(each) for i, each in enumerate(inputs)]
    outputs, grad_outputs = _roots((outputs, grad_outputs))
    with torch._C.DisableTorchFunctionSubclass():
        found = func(outputs, [*asked, *tokens], grad_outputs, allow_unused=True, **kwargs)
    came = [token for token in found[len(asked) :] if token is not None]
    grads = list(found[: len(asked)])
    for i, batch in batches.items():
        grads[i] = None if grads[i] is None else defer(grads[i], batch.sizes, batch.batch_dim, True, came)
    if any(grad is None for grad in grads) and not allow_unused:
        raise RuntimeError(
            "a batch was not used in the graph whose gradient is asked for: allow_unused=True permits it"
        )
    return tuple(grads)


RULES[torch.autograd.grad] = lambda func, args, kwargs: _gradient(func, *args, **kwargs)
RULES.update(dict.fromkeys((torch.autograd.backward, torch.Tensor.backward), _backward))
