"""Values over all ranks: for scripts that are written by hand, and for what rank 0 alone can know."""

from __future__ import annotations

from typing import Any

from .base import world
from .base.location import here
from .batches.deferred import materialize
from .ranks.exchange import exchange


def gather(value: Any) -> list[Any]:
    """What each rank has, in the order of the ranks, the same on every rank. A collective.

    For values that differ between ranks: `sum(ddp.gather(x))`, `max(ddp.gather(x))`, `torch.cat(ddp.gather(rows))`.
    What comes from whole batches is over all ranks already. Tensors come detached, on the CPU or this rank's device.

    Raises:
        TypeError: it isn't a value as `broadcast` takes it.
    """
    value = materialize(value)
    return [value] if _is_alone("ddp.gather") else exchange("ddp.gather", value)


def broadcast(value: Any) -> Any:
    """Rank 0's value, on every rank. A collective.

    For answers that may differ between ranks and decide what the script does next: whether a file is there, the time.

    Args:
        value: None, numbers, text, bytes, dates and times, paths, tensors, arrays; tuples, lists, sets, dicts of these.

    Raises:
        TypeError: it is something else.
    """
    if _is_alone("ddp.broadcast"):
        return value
    value = materialize(value)
    return exchange("ddp.broadcast", value if world.is_main() else None)[0]


def barrier() -> None:
    """Wait until every rank has come here.

    Only for scripts that had one: a line of the script needs none, because each rank's reads wait for rank 0's writes.
    """
    if world.world_size() > 1:
        exchange("ddp.barrier")


def _is_alone(kind: str) -> bool:
    """Whether there is no other rank; as yet, where `setup` will find some, and say that this came too early."""
    place = world.current()
    if not place.ready and not place.met_early:
        place.met_early = f"{kind} at {here().line}"
    return place.world_size == 1
