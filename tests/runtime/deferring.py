"""Batches of which each rank holds its rows; how many messages a piece of a script takes; everything made large."""

from __future__ import annotations

from typing import Any, Callable
from unittest import mock

import pytest
import torch
from dp2ddp_runtime import rows as rows_module
from dp2ddp_runtime.rows import Rows, cut
from dp2ddp_runtime.world import world

ROWS = 7  # uneven on 2 and on 3 ranks


def data(rows: int = ROWS, width: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """What the loader's samples are, whole."""
    generator = torch.Generator().manual_seed(3)
    return torch.rand(rows, width, 8, 8, generator=generator), torch.randint(5, (rows,), generator=generator)


def chunks(total: int, size: int) -> list[int]:
    """`torch.chunk`'s sizes."""
    each = -(-total // size)
    return [max(0, min(each, total - rank * each)) for rank in range(size)]


def deferred(whole: torch.Tensor) -> Any:
    """This rank's rows of it, as a loader gives them; in a process alone itself."""
    if world.size == 1:
        return whole.clone()
    sizes = chunks(len(whole), world.size)
    return Rows(cut(whole, sizes).clone(), sizes)


def batch(rows: int = ROWS) -> tuple[Any, Any]:
    x, y = data(rows)
    return deferred(x), deferred(y)


def is_rows(value: Any) -> bool:
    """Whether nobody has looked at it."""
    return isinstance(value, Rows) and value._whole is None


def messages(action: Callable[[], Any]) -> int:
    """How many messages a piece of a script takes."""
    before = world.count
    action()
    return world.count - before


def all_large() -> Any:
    """While it lasts nothing is small enough to travel along."""
    return mock.patch.object(rows_module, "SMALL", -1)


#: Before torch 2.3 a batch can't become an ordinary tensor; what needs that raises.
needs_swap = pytest.mark.skipif(not hasattr(torch.utils, "swap_tensors"), reason="there is no swap_tensors")
