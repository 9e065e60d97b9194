"""What each module of the wrapped models gives out in one step, and the gradients that come back to it: as sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel

from dp2ddp.verify.run import state

_WRAPPERS = (nn.DataParallel, DistributedDataParallel)  # a model that is wrapped by the runtime is the latter, too


@contextmanager
def watched(write: Callable[..., None], is_on: Callable[[], bool], first: int) -> Iterator[None]:
    """Write an event for each output of a module within a wrapped model, and for each gradient of one.

    Args:
        write: writes an event.
        is_on: whether this is the step.
        first: the number of the first replica that runs in this process: the rank, or 0 where all do.
    """
    watch = _Watch(write, is_on, first)
    hooks = [register_module_forward_pre_hook(watch.before), register_module_forward_hook(watch.after)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class _Watch:
    def __init__(self, write: Callable[..., None], is_on: Callable[[], bool], first: int) -> None:
        self._write, self._is_on, self._first = write, is_on, first
        self._stack: list[nn.Module] = []
        self._names: dict[int, str] = {}
        self._forward = self._replica = self._number = -1
        self._model = ""

    def before(self, module: nn.Module, inputs: Any) -> None:
        if isinstance(module, _WRAPPERS):
            self._forward += 1
            self._replica, self._names = self._first - 1, {}
        elif self._stack and isinstance(self._stack[-1], _WRAPPERS):  # a replica begins
            self._replica += 1
            self._number = -1
            self._names = {id(part): name for name, part in module.named_modules()}
            self._model = type(module).__name__
        self._stack.append(module)

    def after(self, module: nn.Module, inputs: Any, output: Any) -> None:
        while self._stack and self._stack.pop() is not module:  # one that raised
            pass
        inside = any(isinstance(above, _WRAPPERS) for above in self._stack)
        if not inside or isinstance(module, _WRAPPERS) or not self._is_on():
            return
        self._number += 1
        place = [self._forward, self._replica, self._number]
        name, kind = self._names.get(id(module), ""), type(module).__name__
        tensors = [each for each in state.tensors_in(output) if each.is_floating_point()]
        told = {"place": place, "model": self._model, "name": name, "module": kind}
        self._write("module", **told, of="output", sums=[*map(state.sums, tensors)])
        for index, tensor in enumerate(tensors):
            if tensor.requires_grad:
                tell = partial(self._tell, {**told, "place": [*place, index]})
                hooked: Any = tensor
                hooked.register_hook(tell)

    def _tell(self, told: dict[str, Any], grad: torch.Tensor) -> None:
        self._write("module", **told, of="gradient", sums=[state.sums(grad)])
