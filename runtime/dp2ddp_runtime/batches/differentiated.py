"""Deferred batches that autograd is asked about: their gradients, and where a backward begins."""

from __future__ import annotations

from typing import Any

import torch

from .deferred import RULES, Deferred, defer, materialize
from .rowwise import rule


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
