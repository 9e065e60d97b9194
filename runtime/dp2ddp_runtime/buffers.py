"""A model's buffers: rank 0's on all ranks after each training forward."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from .world import SMALL, broadcast_, world


class Buffers:
    """All dense ones, each once, as long as they are the same.

    Args:
        held: the modules' dictionaries.
    """

    def __init__(self, held: Sequence[dict[str, Any]]) -> None:
        self._views = [each.values() for each in held]
        self._known: list[Any] = [self]
        self.tensors: list[torch.Tensor] = []

    def now(self) -> list[torch.Tensor]:
        """Those that there are by now. A forward may have assigned others."""
        found = list(chain.from_iterable(self._views))
        if len(found) != len(self._known) or not all(map(is_, found, self._known)):
            self._known = found
            dense = {id(each): each for each in found if each is not None and each.layout == torch.strided}
            self.tensors = [each for each in dense.values() if not each.is_meta]
            kinds: dict[torch.dtype, list[torch.Tensor]] = {}
            for each in self.tensors:
                kinds.setdefault(each.dtype, []).append(each)
            self._kinds = list(kinds.values())
            devices = {each.device for each in self.tensors}
            self._is_plain = len(devices) == 1 and not any(map(torch.is_complex, self.tensors))
            size = sum(each.numel() * each.element_size() for each in self.tensors)
            self._is_small = self._is_plain and size <= SMALL and all(each.is_cpu for each in self.tensors)
        return self.tensors

    @torch.no_grad()
    def small(self) -> list[torch.Tensor]:
        """Rank 0's, if they have room in a message."""
        return [self._flat()] if self.now() and self._is_small and not world.rank else []

    def _flat(self) -> torch.Tensor:
        flats = [_flatten_dense_tensors(some) for some in self._kinds]  # type: ignore[no-untyped-call]
        return torch.cat([flat.view(torch.uint8) for flat in flats])

    @torch.no_grad()
    def take(self, came: Sequence[torch.Tensor] = ()) -> None:
        """Rank 0's numbers, that `came` as `small` gave them. A collective if they haven't."""
        if not self.now():
            return
        if not came and not self._is_plain:
            broadcast_(self.tensors)
            return
        flat = came[0] if came else self._flat()
        if not came:
            broadcast_([flat])
        if not world.rank:
            return
        for some in self._kinds:
            size = sum(map(torch.Tensor.numel, some)) * some[0].element_size()
            part, flat = flat[:size].clone().view(some[0].dtype), flat[size:]
            parts = list(_unflatten_dense_tensors(part, some))  # type: ignore[no-untyped-call]
            torch._foreach_copy_([each.data for each in some], parts)
