"""The script's own hooks on parameters: they see the gradient over all ranks, as with `nn.DataParallel`.

A hook such as `param.register_hook(lambda grad: grad.clamp(-1, 1))` would run on this rank's part of the gradient,
before it is averaged. So while gradients are being averaged it does nothing, and the reducer calls it afterwards.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch


class Own(functools.partial):  # type: ignore[type-arg]
    """A hook of the runtime's own."""

    __torch_unserializable__ = True  # keeps torch.save from warning that hooks aren't saved


class Deferred:
    """A hook of the script's, called later where `waits()`. It takes the hook's place, so that its handle works."""

    def __init__(self, hook: Callable[[Any], Any]) -> None:
        self.hook = hook
        self.waits: Callable[[], bool] = bool

    def __call__(self, value: Any) -> Any:
        return None if self.waits() else self.hook(value)


def defer(param: torch.nn.Parameter, waits: Callable[[torch.nn.Parameter], bool]) -> bool:
    """Let the script's hooks on `param` wait where `waits(param)`. Returns whether there are any."""
    found = False
    hooks: Any
    for hooks in (param._backward_hooks, param._post_accumulate_grad_hooks):
        for key, hook in list(hooks.items()) if hooks else ():
            if not isinstance(hook, Own):
                hooks[key] = deferred = hook if isinstance(hook, Deferred) else Deferred(hook)
                deferred.waits = functools.partial(waits, param)
                found = True
    return found


def call(hooks: Any, value: Any) -> Any:
    """Call the script's `hooks`, each with what the one before made of `value`, and return what becomes of it."""
    for hook in list((hooks or {}).values()):
        changed = hook.hook(value) if isinstance(hook, Deferred) else None
        value = value if changed is None else changed
    return value
