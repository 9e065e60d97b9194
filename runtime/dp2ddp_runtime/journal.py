"""Which files rank 0 has written so far, so that no other rank reads one too early. No collectives: a key-value store.

Only rank 0 writes files, but every rank runs every line. So each rank counts, per path, the writes that its script
has passed; rank 0 publishes its own count when a write is done; and a read on another rank waits until rank 0 has done
as many writes to that path (or to a folder above it) as the reader itself has passed. Should the counts differ, because
the script asked the file system first (`if not os.path.exists(p)`), rank 0's arrival at the same read ends the wait.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Callable, Union

import torch.distributed as dist

from . import world

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]

_POLL = 0.002  # seconds; doubled while waiting, up to _POLL_MAX
_POLL_MAX = 0.05


class PeerError(RuntimeError):
    """Another rank failed, or didn't come in time; this one is not to blame."""


class Journal:
    """One rank's counts of writes and reads by absolute path, and rank 0's counts in the store."""

    def __init__(self, place: world.World, store: Store) -> None:
        self._place = place
        self._store = store
        self._writes: defaultdict[str, int] = defaultdict(int)
        self._reads: defaultdict[str, int] = defaultdict(int)
        self._lock = threading.Lock()

    def wrote(self, path: str, publish: bool = True) -> None:
        """Count one write to `path`, which is over now; rank 0 tells the others, unless `publish` is False."""
        with self._lock:
            self._writes[path] += 1
            count = self._writes[path]
        if publish and self._place.rank == 0:
            self._store.set(f"wrote{path}", str(count))

    def before_read(self, path: str) -> None:
        """Return when rank 0 has done all writes to `path` that this rank has passed.

        Raises:
            PeerError: rank 0 didn't get there within the process group's timeout.
        """
        with self._lock:
            behind = {p: self._writes[p] for p in _with_parents(path) if p in self._writes}
            if not behind:
                return
            self._reads[path] += 1
            reads = self._reads[path]
        if self._place.rank == 0:
            self._store.set(f"read{path}", str(reads))
            return

        def done() -> bool:
            # `add(key, 0)` reads a counter that may not exist yet, without blocking; `get` would block.
            if all(self._store.add(f"wrote{p}", 0) >= count for p, count in behind.items()):
                return True
            return int(self._store.add(f"read{path}", 0)) >= reads

        wait_until(done, self._place.timeout, f"rank 0 to write {path}")


def wait_until(done: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll `done` until it is true.

    Raises:
        PeerError: it wasn't within `seconds`; `what` says what was waited for.
    """
    deadline = time.monotonic() + seconds
    pause = _POLL
    while not done():
        if time.monotonic() > deadline:
            raise PeerError(f"rank {world.rank()} waited {seconds:.0f} s for {what}, in vain")
        time.sleep(pause)
        pause = min(2 * pause, _POLL_MAX)


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


def wrote(path: Path, publish: bool = True) -> None:
    """Note that a write to `path` is over. Does nothing in a single process, or inside `muted()`."""
    journal = _journal()
    if journal is not None and not muted_here():
        journal.wrote(_absolute(path), publish)


def before_read(path: Path) -> None:
    """Wait until rank 0 has done the writes to `path` that this rank has passed (`Journal.before_read`)."""
    journal = _journal()
    if journal is not None:
        journal.before_read(_absolute(path))


@contextmanager
def muted() -> Iterator[None]:
    """Count no writes meanwhile: this code runs on rank 0 alone, so the others can't count them."""
    _here.depth = getattr(_here, "depth", 0) + 1
    try:
        yield
    finally:
        _here.depth -= 1


def muted_here() -> bool:
    """Whether this thread is inside `muted()`."""
    return getattr(_here, "depth", 0) > 0


_here = threading.local()
_kept: tuple[world.World, Journal] | None = None


def _journal() -> Journal | None:
    global _kept
    shared = store()
    if shared is None:
        return None
    if _kept is None or _kept[0] is not world.current():
        _kept = (world.current(), Journal(world.current(), shared))
    return _kept[1]


def _absolute(path: Path) -> str:
    # Not realpath: whether a link exists already may differ between ranks.
    return os.path.abspath(os.fsdecode(path))


def _with_parents(path: str) -> Iterator[str]:
    yield path
    parent = os.path.dirname(path)
    while parent != path:
        yield parent
        path, parent = parent, os.path.dirname(parent)
