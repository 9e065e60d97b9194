"""Modules for a test: of some parts, with a function for a forward."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import nn


class Made(nn.Module):
    """Of modules, parameters and buffers (plain tensors); of two layers by default."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = forward
        for name, part in (parts or {"layer": nn.Linear(4, 3), "other": nn.Linear(4, 3)}).items():
            is_buffer = isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter)
            (self.register_buffer if is_buffer else self.__setattr__)(name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)
