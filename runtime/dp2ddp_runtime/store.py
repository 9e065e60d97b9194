"""What rank 0 tells once and for all, and the ranks' counters, by the key-value store."""

from __future__ import annotations

import time
from typing import Any, Callable

from . import codec, place
from .world import PeerError, waiting, world

_POLL = 0.005  # seconds


class Unpublished:
    """What was told while there was no store; the store gets it by `hand_over`.

    Attributes:
        collects: whether there may be somebody to hear it, later.
    """

    def __init__(self) -> None:
        self.collects = False
        self.values: dict[str, bytes] = {}

    def hand_over(self) -> None:
        """To the store, which there is from now on."""
        for key, data in self.values.items():
            put(key, data)
        self.values.clear()


unpublished = Unpublished()


def put(key: str, data: bytes | str) -> None:
    """Into the store."""
    world.store.set(key, data)
    if not hasattr(world.store, "check"):  # torch 2.1
        world.store.add(f"{key}/there", 1)
    has(key)  # `set` doesn't wait until its host has it: what follows on the disk would be seen ahead of it


def has(key: str) -> bool:
    """Whether a key is in the store. `get` would wait for it."""
    if hasattr(world.store, "check"):
        return bool(world.store.check([key]))
    return bool(world.store.add(f"{key}/there", 0))


def publish(key: str, value: Any) -> None:
    """Rank 0 tells a plain value (`codec.dumps`). It is kept until there is somebody to hear it."""
    if world.store is not None:
        put(key, codec.encode(value))
    elif unpublished.collects:
        unpublished.values[key] = codec.encode(value)


def published(key: str) -> tuple[Any] | None:
    """What was told; None if it wasn't. Never waits."""
    return None if world.store is None or not has(key) else (codec.decode(world.store.get(key)),)


def receive(key: str, what: str) -> Any:
    """What rank 0 tells, when it does. `what` is for the report of hangs. PeerError if it has ended."""
    wait_until(lambda: has(key), what)
    return codec.decode(world.store.get(key))


def count(key: str, more: int = 0) -> int:
    """A counter that all ranks share, with `more` added; without a store, this rank's alone, and not stored."""
    return more if world.store is None else int(world.store.add(key, more))


def wait_until(done: Callable[[], bool], what: str) -> None:
    """Look again and again. `hangs` ends it if that is for nothing.

    Raises:
        PeerError: the store's host is gone.
    """
    with waiting(what):
        try:
            while not done():
                time.sleep(_POLL)
        except (RuntimeError, OSError) as error:
            raise PeerError(f"rank 0 has ended, and this rank waited for {what} at {place.line()}") from error


def ask(key: str, call: Callable[[], Any]) -> Any:
    """What rank 0's call gave, on all ranks; what it raised (end of file, Ctrl-C), too."""
    if world.rank == 0:
        try:
            value = call()
        except (EOFError, OSError, KeyboardInterrupt) as error:
            publish(key, [type(error).__name__, None])
            raise
        publish(key, ["", value])
        return value
    kind, value = receive(key, "rank 0's answer")
    if kind:
        raise {"EOFError": EOFError, "KeyboardInterrupt": KeyboardInterrupt}.get(kind, OSError)()
    return value
