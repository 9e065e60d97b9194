"""What rank 0's calls on the disk came to, call by call, so that the same calls of the other ranks come to the same.

No collectives: a key-value store. Every rank runs every line, so rank 0 comes to each call that another rank comes to;
where it doesn't, because the ranks differ in what they do, the other one goes on by itself as soon as rank 0 waits in
a collective: by then it has done all that lies before that.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base import waiting, world
from ..ranks.file_sync import counted
from .callsites import Call

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_BURST = 0.001  # seconds: answers within that go together
_FIRST_POLL, _LAST_POLL = 0.0002, 0.01  # seconds
_LOOKS_EVERY = 0.25  # seconds
_LARGE = 1 << 16  # characters, which are removed when all have read them

_ENTRIES, _READERS_AT = "files", "files/at"


class Entry(NamedTuple):
    """What a call, about a path, came to.

    How: "ok", with the answer; "error", with what was raised; "turn", with the number of a change for which rank 0
    waits until the others are at it. The value is as JSON has it.
    """

    call: str
    about: int
    how: str
    value: Any


class Journal:
    """Rank 0 writes it, the others read it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._pending: list[Entry] = []
        self._told_at = 0.0
        self._left = threading.Event()  # set when something waits to be told
        self._teller: threading.Thread | None = None
        self._turns = 0
        self._chunks = 0
        self._came: defaultdict[str, deque[Entry]] = defaultdict(deque)
        self._released_at = -1  # how many collectives there had been when rank 0 was last seen to have passed a call by

    # -- rank 0 --------------------------------------------------------------------------------------------------------

    def tell(self, call: Call, how: str, value: Any, soon: bool = False) -> None:
        """Note what a call came to, to tell it now, or `soon`, with what comes within a moment."""
        with self._lock:
            self._pending.append(Entry(call.key, call.about, how, value))
            if not soon or time.monotonic() - self._told_at >= _BURST:
                self._tell_pending()
                return
            if self._teller is None:
                self._teller = threading.Thread(target=self._keep_telling, daemon=True)
                self._teller.start()
        self._left.set()

    def _keep_telling(self) -> None:
        while self._left.wait():
            self._left.clear()
            time.sleep(_BURST)
            self.flush()

    def _tell_pending(self) -> None:
        with self._lock:
            if self._pending:
                self._store.set(f"{_ENTRIES}/{self._chunks}", json.dumps(self._pending, separators=(",", ":")))
                self._chunks += 1
                self._pending = []
                self._store.add(_ENTRIES, 1)
                self._told_at = time.monotonic()

    def flush(self) -> None:
        """Tell what was noted, if anybody can still be told."""
        with suppress(RuntimeError):  # the store's host is gone
            self._tell_pending()

    def let_pass(self, call: Call) -> None:
        """Return when the other ranks have come to this call, and so are done with what lies before."""
        with self._lock:
            self._turns += 1
            turn = self._turns
            self.tell(call, "turn", turn)
        for rank in set(range(world.world_size())) - {world.rank()}:
            for released in _polls(self._store, rank, f"rank {rank} to come to {call.what}", in_collective=False):
                if released or counted(self._store, f"{_READERS_AT}{rank}") >= turn:
                    break

    # -- the others ----------------------------------------------------------------------------------------------------

    def hear(self, call: Call) -> Entry | None:
        """What the same call came to on rank 0, as soon as it has; None if rank 0 doesn't come to it."""
        found = self._next(call)
        if found is not None or self._released_at == waiting.collectives:
            return found
        for released in _polls(self._store, 0, f"rank 0's {call.what}", in_collective=True):
            found = self._next(call)
            if found is not None or released:
                break
        if found is None:
            self._released_at = waiting.collectives
        return found

    def _next(self, call: Call) -> Entry | None:
        found = self._take(call)
        if found is None:
            self._read()
            found = self._take(call)
        return found

    def _read(self) -> None:
        with self._lock:
            told = counted(self._store, _ENTRIES)
            while self._chunks < told:
                key = f"{_ENTRIES}/{self._chunks}"
                text = self._store.get(key)
                self._chunks += 1
                for each in json.loads(text):
                    entry = Entry(*each)
                    self._came[entry.call].append(entry)
                if len(text) > _LARGE and self._store.add(f"{key}/read", 1) == world.world_size() - 1:
                    self._store.delete_key(key)

    def _take(self, call: Call) -> Entry | None:
        """The first entry of the call about the same path; in the main thread, where calls have an order, the first."""
        in_order = threading.current_thread() is threading.main_thread()
        with self._lock:
            came = self._came[call.key]
            while came:
                # Rank 0 may be a hundred thousand calls ahead: the first is looked at, and mostly it.
                entry = next((each for each in came if each.about == call.about), came[0] if in_order else None)
                if entry is None:
                    return None
                came.remove(entry)
                if entry.how != "turn":
                    return entry
                self._turns, step = max(self._turns, entry.value), max(0, entry.value - self._turns)
                self._store.add(f"{_READERS_AT}{world.rank()}", step)
            del self._came[call.key]
        return None


def _polls(store: Store, rank: int, what: str, in_collective: bool) -> Iterator[bool]:
    """Come back again and again; with True once `rank` was seen to wait for others, or to have left, since the start.

    With `in_collective` only a collective counts, in which it has done all that it does before that.
    """
    key, pause, looked = f"state{rank}", _FIRST_POLL, time.monotonic()
    before = counted(store, f"{key}/told")
    with waiting.Waiting(what) as own:
        while True:
            own.polls += 1
            time.sleep(pause)
            pause = min(pause * 1.2, _LAST_POLL)
            released = False
            if time.monotonic() - looked > _LOOKS_EVERY:
                looked = time.monotonic()
                told = counted(store, f"{key}/told") - before
                if told:  # once since, which may have been looked up before
                    state = json.loads(store.get(key))
                    waits = state["stands"] if in_collective else bool(state["waits"])
                    released = state["left"] or (waits and told > 1)
            yield released
