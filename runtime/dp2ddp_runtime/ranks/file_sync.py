"""How far rank 0 is with the files, so that no other rank reads one too early. No collectives: a key-value store.

Only rank 0 writes files, but every rank runs every line. So each rank counts, at each line of the script, the writes
that it has passed; rank 0 tells its own counts; and a read on another rank waits until rank 0's are as high as the
reader's. Where they never will be, because the script asked the file system first (`if not os.path.exists(p)`), rank
0's arrival at the same read ends the wait.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Callable

from ..base import world
from ..base.location import here
from ..base.waiting import Waiting

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_POLL = 0.01  # seconds

_passed: Counter[str] = Counter()  # how often this rank has passed a line's writes, reads and turns
_done: dict[str, int] = {}  # the writes that rank 0 is known to have done
_lock = threading.RLock()  # reentrant: the garbage collector may close a file, which is a write, at any moment
#: In what not all ranks do together, who writes: "main", which is alone there, or the "local" ones of each machine.
_alone: ContextVar[str] = ContextVar("alone", default="")


class PeerError(RuntimeError):
    """Another rank failed, or didn't come in time; this one is not to blame."""


def store() -> Store | None:
    """The store that the ranks share; None in a single process, and in a child process of a rank."""
    place = world.current()
    return place.store if place.pid == os.getpid() else None


def shared() -> Store | None:
    """The same, for what all ranks do; None in what rank 0 runs alone."""
    return None if _alone.get() else store()


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


def writes() -> bool:
    """Whether it is this rank that writes files: rank 0; in `main_first()` the first rank of each machine."""
    return world.local_rank() == 0 if _alone.get() == "local" else world.is_main()


@contextmanager
def alone(who: str) -> Iterator[None]:
    """`with alone("local"):` around what the ranks of a machine do one after the other."""
    token = _alone.set(who)
    try:
        yield
    finally:
        _alone.reset(token)


@contextmanager
def writing() -> Iterator[None]:
    """`with writing():` around what rank 0 does alone; other ranks' reads wait until it is over there."""
    line, counts = here().line, shared() is not None
    try:
        with alone(_alone.get() or "main"):
            yield
    finally:
        if counts:
            wrote(line)


def wrote(line: str) -> None:
    """Count a write that `line` began, and that is over."""
    found = store()
    if found is not None:
        _pass(f"wrote {line}", found)


def before_read(path: object) -> None:
    """Return when rank 0 has done all writes that this rank has passed."""
    found = shared()
    if found is None:
        return
    key = f"read {here().line}"
    reads = _pass(key, found)
    behind = _behind()
    if world.is_main() or not behind:
        return

    def done() -> bool:
        return _all_done(found, behind) or counted(found, key) >= reads

    wait_until(done, f"rank 0 to write {path}")
    _done.update(behind)


def before_end(seconds: float) -> None:
    """Return when rank 0 has done all writes that this rank has passed: the rank that ends first may end the job.

    Raises:
        PeerError: it hasn't within `seconds`.
    """
    found = shared()
    if found is not None and not world.is_main():
        behind = _behind()
        wait_until(lambda: _all_done(found, behind), "rank 0's writes", seconds)


def _behind() -> dict[str, int]:
    """The writes that this rank has passed, without those that rank 0 is known to have done."""
    with _lock:
        passed = list(_passed.items())
    return {what: count for what, count in passed if what.startswith("wrote ") and count > _done.get(what, 0)}


def _all_done(found: Store, behind: Mapping[str, int]) -> bool:
    return all(counted(found, what) >= count for what, count in behind.items())


def next_turn(what: str) -> str:
    """A key for what is told at the script's line this time; by line, as ranks may differ in what they pass."""
    key = f"{what} {here().line}"
    return f"{key} {_pass(key)}"


def _pass(what: str, told: Store | None = None) -> int:
    """How often this rank has passed `what` by now, which rank 0 tells in the store."""
    with _lock:
        _passed[what] += 1
        if told is not None and world.is_main():
            told.set(what, str(_passed[what]))
        return _passed[what]
