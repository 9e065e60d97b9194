"""Storages on pretend devices, where C++ would ask CUDA's allocator for memory."""

from __future__ import annotations

from typing import Any

import torch


def install() -> None:
    """Let `torch.UntypedStorage` take its memory on a pretend device from a tensor, and grow as a tensor's does."""
    storage: Any = torch.UntypedStorage
    new, resize = storage.__new__, storage.resize_

    def make(cls: Any, *args: Any, device: Any = None, **named: Any) -> Any:
        if device is None or torch.device(device).type != "cuda":
            return new(cls, *args, **({} if device is None else {"device": device}), **named)
        size = args[0] if args else 0
        if isinstance(size, int):
            return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()
        return torch.tensor(list(size), dtype=torch.uint8, device=device).untyped_storage()

    def grow(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return resize(self, size)
        if size < self.nbytes():
            raise NotImplementedError("pretend CUDA: a storage on its devices can't be made smaller")
        torch.empty(0, dtype=torch.uint8, device=self.device).set_(self).resize_(size)
        return self

    storage.__new__ = staticmethod(make)
    storage.resize_ = grow
