"""The ranks' key-value store: what they tell each other where they don't all meet, and who writes there."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Callable

from ..base import world
from ..base.location import here
from ..base.waiting import Waiting

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_POLL = 0.01  # seconds

_turns: Counter[str] = Counter()  # how often this rank has come to what is told at a line
_lock = threading.RLock()
_writer: ContextVar[str] = ContextVar("writer", default="")


class PeerError(RuntimeError):
    """Another rank failed, or didn't come in time; this one is not to blame."""


def store() -> Store | None:
    """The store that the ranks share; None in a single process, and in a child process of a rank."""
    place = world.current()
    return place.store if place.pid == os.getpid() else None


def shared() -> Store | None:
    """The same, for what all ranks do; None in what rank 0 runs alone."""
    return None if writer() else store()


def wait_until(done: Callable[[], bool], what: str, seconds: float = math.inf) -> None:
    """Poll `done` until it is true. For ever, where there is a watchdog.

    Raises:
        PeerError: it wasn't within `seconds`; `what` says what was waited for.
    """
    deadline = time.monotonic() + seconds
    with Waiting(what) as waiting:
        while not done():
            waiting.polls += 1
            if time.monotonic() > deadline:
                raise PeerError(f"rank {world.rank()} waited {seconds:.0f} s for {what}, in vain")
            time.sleep(_POLL)


def counted(store: Store, what: str) -> int:
    """A counter that may not exist yet: `get` would wait for it."""
    return int(store.add(what, 0))


def tell(store: Store, key: str, value: Any) -> None:
    """Put `value` into the store, as JSON: it is never unpickled, as another user may reach the store."""
    store.set(key, json.dumps(value))
    store.add(f"{key}/told", 1)


def hear(store: Store, key: str, what: str) -> Any:
    """What another rank tells under `key`, once it does."""
    wait_until(lambda: counted(store, f"{key}/told") > 0, what)
    return json.loads(store.get(key))


#: Set by a rank that has no hands to its process id, for its children, which have none either.
HANDLESS = "DP2DDP_HANDLESS"
#: Whether this is such a child, which has imported the runtime by itself.
is_handless_child = os.environ.get(HANDLESS, str(os.getpid())) != str(os.getpid())


def writer() -> str:
    """In what not all ranks do together, who writes (`not_together`); else empty."""
    return _writer.get()


def writes() -> bool:
    """Whether it is this rank that writes files: rank 0; in `main_first()` the first rank of each machine."""
    who = writer()
    if who == "own":
        return True
    return not is_handless_child and (world.local_rank() == 0 if who == "local" else world.is_main())


@contextmanager
def not_together(writer: str) -> Iterator[None]:
    """`with not_together("local"):` around what not all ranks do, or not at the same time.

    Args:
        writer: who has hands there: "main", which is alone, the "local" first rank of each machine, or each its "own".
    """
    token = _writer.set(writer)
    try:
        yield
    finally:
        _writer.reset(token)


def next_turn(what: str) -> str:
    """A key for what is told at the script's line this time; by line, as ranks may differ in what they pass."""
    key = f"{what} {here().line}"
    with _lock:
        _turns[key] += 1
        return f"{key} {_turns[key]}"
