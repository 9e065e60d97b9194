"""`torch.nn.parallel.data_parallel`, over ranks."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, MutableMapping
from typing import Any

from torch import nn

from ..base import world
from .wrapped import WrappedModel, wrap_model

# A module stays here for good, as its wrapped self holds it: scripts make few of them.
_wrapped: MutableMapping[nn.Module, dict[int, WrappedModel]] = weakref.WeakKeyDictionary()


def data_parallel(module: nn.Module, inputs: Any, dim: int = 0, module_kwargs: Mapping[str, Any] | None = None) -> Any:
    """`torch.nn.parallel.data_parallel` over ranks: splits the inputs, runs the module, gathers the outputs.

    The module takes part from its first call on: then it takes rank 0's parameters and buffers, and from then on its
    gradients are summed over the ranks. All ranks call it with the same inputs. With a single rank it calls the module.

    Args:
        module: the module; it moves to this rank's device, if it isn't there.
        inputs: a tensor, or a tuple of positional arguments.
        dim: the dimension along which inputs are split and outputs concatenated.
        module_kwargs: keyword arguments.

    Returns:
        What the module returns, gathered along `dim`.
    """
    arguments = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    if world.world_size() == 1:
        return module(*arguments, **(module_kwargs or {}))
    wrapped = _wrapped.setdefault(module, {})
    if dim not in wrapped:
        wrapped[dim] = wrap_model(module, dim=dim)
    return wrapped[dim](*arguments, **(module_kwargs or {}))
