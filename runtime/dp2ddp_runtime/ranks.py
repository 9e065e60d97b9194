"""What a script may ask about the ranks, and values over all of them."""

from __future__ import annotations

from typing import Any

from .rows import materialize
from .world import exchange, world


def rank() -> int:
    """This process's rank, 0 to `world_size() - 1`; 0 before the first wrap, in the process that was started."""
    return world.rank


def local_rank() -> int:
    """This process's rank on its own machine."""
    return world.local_rank


def world_size() -> int:
    """The number of ranks, over all machines; 1 before the first wrap."""
    return world.size


def is_main() -> bool:
    """Whether this is rank 0, the one that prints and writes files."""
    return world.rank == 0


def gather(value: Any) -> list[Any]:
    """What each rank has, in the order of the ranks, the same on every rank. A collective.

    For values that differ between ranks: `sum(ddp.gather(x))`, `max(ddp.gather(x))`, `torch.cat(ddp.gather(rows))`.
    What comes from whole batches is over all ranks already. Tensors come detached, on the CPU.

    Raises:
        TypeError: it isn't a plain value (None, numbers, text, bytes, dates, paths, tensors, arrays; nests of these).
    """
    return [each.value for each in exchange("ddp.gather", materialize(value))]


def barrier() -> None:
    """Wait until every rank has come here. A collective.

    Only for scripts that had one: a line of the script needs none, because each rank's reads wait for rank 0's writes.
    """
    exchange("ddp.barrier")
