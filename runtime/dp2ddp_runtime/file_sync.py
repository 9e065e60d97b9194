"""How far rank 0 is with the files, so that no other rank reads one too early. No collectives: a key-value store.

Only rank 0 writes files, but every rank runs every line. So each rank counts, at each line of the script, the writes
that it has passed; rank 0 tells its own counts; and a read on another rank waits until rank 0's are as high as the
reader's. Where they never will be, because the script asked the file system first (`if not os.path.exists(p)`), rank
0's arrival at the same read ends the wait.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Callable

import torch.distributed as dist

from . import world

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_POLL = 0.01  # seconds

_writes: Counter[str] = Counter()  # what this rank has passed
_reads: Counter[str] = Counter()
_done: dict[str, int] = {}  # the writes that rank 0 is known to have done
_lock = threading.RLock()  # reentrant: the garbage collector may close a file, which is a write, at any moment
_alone: ContextVar[bool] = ContextVar("alone", default=False)
_in_turn: ContextVar[bool] = ContextVar("in_turn", default=False)
_turns: Counter[str] = Counter()  # what was told once for each time that the ranks passed a line


class PeerError(RuntimeError):
    """Another rank failed, or didn't come in time; this one is not to blame."""


def prefixed(store: Store) -> Store:
    """The runtime's own corner of `store`."""
    return dist.PrefixStore("dp2ddp", store)  # type: ignore[attr-defined]


def store() -> Store | None:
    """The store that the ranks share; None in a single process, and in a child process of a rank."""
    place = world.current()
    if place.world_size == 1 or place.pid != os.getpid():
        return None
    if place.store is None:
        place.store = prefixed(dist.distributed_c10d._get_default_store())
    return place.store


def shared() -> Store | None:
    """The same, for what all ranks do; None in what rank 0 runs alone."""
    return None if _alone.get() else store()


def wait_until(done: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll `done` until it is true.

    Raises:
        PeerError: it wasn't within `seconds`; `what` says what was waited for.
    """
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise PeerError(f"rank {world.rank()} waited {seconds:.0f} s for {what}, in vain")
        time.sleep(_POLL)


def tell(store: Store, key: str, value: Any) -> None:
    """Put `value` into the store, as JSON: it is never unpickled, as another user may reach the store."""
    store.set(key, json.dumps(value))
    store.add(f"{key}/told", 1)


def hear(store: Store, key: str, what: str) -> Any:
    """What another rank tells under `key`, once it does; raises as `wait_until`."""
    wait_until(lambda: _counted(store, f"{key}/told") > 0, world.current().timeout, what)
    return json.loads(store.get(key))


def callers_line() -> str:
    """The line that called the function that asks, as `train.py:57`."""
    frame = sys._getframe(2)
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def writes() -> bool:
    """Whether it is this rank that writes files: rank 0; in `main_first()` the first rank of each machine."""
    return world.local_rank() == 0 if _in_turn.get() else world.is_main()


@contextmanager
def in_turn() -> Iterator[None]:
    """`with in_turn():` around what the ranks of a machine do one after the other."""
    tokens = _alone.set(True), _in_turn.set(True)
    try:
        yield
    finally:
        _alone.reset(tokens[0])
        _in_turn.reset(tokens[1])


def next_turn(what: str, line: str) -> str:
    """A key for what is told at `line` this time; by line, as ranks may differ in what they pass."""
    with _lock:
        _turns[f"{what} {line}"] += 1
        return f"{what} {line} {_turns[f'{what} {line}']}"


@contextmanager
def writing(line: str) -> Iterator[None]:
    """`with writing(callers_line()):` around what rank 0 does alone; other ranks' reads wait until it is over there."""
    counts = shared() is not None
    token = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(token)
        if counts:
            wrote(line)


def wrote(line: str) -> None:
    """Count a write that `line` began, and that is over."""
    found = store()
    if found is not None:
        _count(_writes, f"wrote {line}", found)


def before_read(path: object, line: str) -> None:
    """Return when rank 0 has done all writes that this rank has passed.

    Raises:
        PeerError: rank 0 didn't get there within the process group's timeout.
    """
    found = shared()
    if found is None:
        return
    key = f"read {line}"
    reads = _count(_reads, key, found)
    with _lock:
        behind = {what: count for what, count in _writes.items() if count > _done.get(what, 0)}
    if world.is_main() or not behind:
        return

    def done() -> bool:
        passed = all(_counted(found, what) >= count for what, count in behind.items())
        return passed or _counted(found, key) >= reads

    wait_until(done, world.current().timeout, f"rank 0 to write {path}")
    _done.update(behind)


def _counted(store: Store, what: str) -> int:
    """A counter that may not exist yet: `get` would wait for it."""
    return int(store.add(what, 0))


def _count(counts: Counter[str], what: str, store: Store) -> int:
    with _lock:
        counts[what] += 1
        if world.is_main():
            store.set(what, str(counts[what]))
        return counts[what]
