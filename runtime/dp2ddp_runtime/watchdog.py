"""Ends a run whose ranks wait for each other in different places, which would go on for ever, and names the places."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, NoReturn

from . import failure, file_sync, world

_PATIENCE = 10.0  # seconds that a rank waits before it says so
_LOOK_EVERY = 1.0  # seconds

_RUNS, _WAITS, _LEFT = "runs", "waits", "left"


class Waiting:
    """`with Waiting(...):` around a collective says meanwhile what this rank waits for.

    It costs next to nothing: a thread looks at it from time to time, and tells the others by way of the store.

    Args:
        what: the collective; the same text on all ranks that are in the same one.
        line: of the user's script.
    """

    def __init__(self, what: str, line: str) -> None:
        self.what = what
        self.line = line or "an unknown line"
        self.since = time.monotonic()
        self.told = False
        self._before: Waiting | None = None

    def __enter__(self) -> None:
        global _current
        self._before, _current = _current, self
        _start()

    def __exit__(self, *error: object) -> None:
        global _current
        _current = self._before
        if self.told:
            _tell(_RUNS)


_current: Waiting | None = None
_thread: threading.Thread | None = None


def _start() -> None:
    global _thread
    if _thread is None and file_sync.store() is not None:
        _thread = threading.Thread(target=_watch, name="dp2ddp-watchdog", daemon=True)
        _thread.start()


def leave(line: str = "") -> None:
    """Tell that this rank has come to the end of the script."""
    _tell(_LEFT, "nothing: it has come to the end of the script", line)


def _watch() -> None:
    before: list[Any] | None = None
    while True:
        time.sleep(_LOOK_EVERY)
        waiting = _current
        if waiting is None or time.monotonic() - waiting.since < _PATIENCE:
            before = None
            continue
        waiting.told = True
        _tell(_WAITS, waiting.what, waiting.line)  # again and again: a process that is stopped tells nothing
        states = _ask()
        if states and before and waiting is _current and _are_stuck(before, states):
            _end(states)
        before = states


def _tell(state: str, what: str = "", line: str = "") -> None:
    store = file_sync.store()
    try:
        if store is not None:
            store.set(f"waits{world.rank()}", json.dumps([state, what, line, time.time()]))
            store.add(f"has told{world.rank()}", 1)  # which can be asked for without waiting
    except RuntimeError:
        return  # the store's host is gone: then what is waited for fails by itself


def _ask() -> list[Any] | None:
    """What all ranks told last; None where one has never told anything."""
    store = file_sync.store()
    ranks = range(world.world_size())
    try:
        if store is None or not all(store.add(f"has told{rank}", 0) for rank in ranks):
            return None
        return [json.loads(store.get(f"waits{rank}")) for rank in ranks]
    except RuntimeError:
        return None


def _are_stuck(before: list[Any], now: list[Any]) -> bool:
    """Whether none runs, and they have waited for different things since the last look."""
    still = all(
        one[:3] == other[:3] and (one[0] == _LEFT or (one[0] == _WAITS and one[3] < other[3]))
        for one, other in zip(before, now)
    )
    return still and len({what for _, what, *_ in now}) > 1


def _end(states: list[Any]) -> NoReturn:
    store = file_sync.store()
    if store is not None and store.add(failure.FAILED, 1) == 1:
        places = "".join(
            f"\n  rank {rank} at {line or 'its end'} waits for {what}" for rank, (_, what, line, _) in enumerate(states)
        )
        sys.stderr.write(
            f"dp2ddp: the ranks wait for each other in different places:{places}\n"
            "Each rank must run every line: what decides on the way there has to be the same on all of them "
            "(ddp.broadcast gives all ranks rank 0's value).\n"
        )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)  # the main thread is in a collective that never ends
