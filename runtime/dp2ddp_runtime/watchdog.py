"""Ends a run whose ranks wait for each other in different places, which would go on for ever, and names the places."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from . import failure, world
from .file_sync import counted, tell

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_PATIENCE = 10.0  # seconds that a rank waits before it says so
_LOOK_EVERY = 1.0  # seconds
#: What the errors of ranks that are in different places end with.
ADVICE = (
    "Each rank must run every line: what decides on the way there has to be the same on all of them "
    "(ddp.broadcast gives all ranks rank 0's value)"
)

_current: Waiting | None = None


class Waiting:
    """`with Waiting(...):` around a collective says meanwhile what this rank waits for.

    It costs next to nothing: a thread looks at it from time to time, and tells the others by way of the store.

    Args:
        what: the collective; the same text on all ranks that are in the same one.
        line: of the user's script.
    """

    def __init__(self, what: str, line: str) -> None:
        self.told = (what, line or "an unknown line")
        self.since = time.monotonic()

    def __enter__(self) -> None:
        global _current
        self._before, _current = _current, self

    def __exit__(self, *error: object) -> None:
        global _current
        _current = self._before


def start(store: Store) -> None:
    """Look after this rank from now on."""
    threading.Thread(target=_watch, args=[store], name="dp2ddp-watchdog", daemon=True).start()


def leave(store: Store) -> None:
    """Tell that this rank has come to the end of the script."""
    tell(store, f"waits{world.rank()}", ["nothing: it has come to the end of the script", "its end", None])


def _watch(store: Store) -> None:
    before: list[Any] = []
    with suppress(RuntimeError):  # the store's host is gone: then what is waited for fails by itself
        while True:
            time.sleep(_LOOK_EVERY)
            waiting, now = _current, []
            if waiting is not None and time.monotonic() - waiting.since > _PATIENCE:
                # Again and again: a rank that ceases to tell is at work, or was stopped.
                keys = [f"waits{rank}" for rank in range(world.world_size())]
                tell(store, keys[world.rank()], [*waiting.told, time.time()])
                if all(counted(store, f"{key}/told") for key in keys):
                    now = [json.loads(store.get(key)) for key in keys]
                if waiting is _current and before and now and _are_stuck(before, now):
                    _end(now)
            before = now


def _are_stuck(before: list[Any], now: list[Any]) -> bool:
    """Whether all have gone on waiting since the last look, and not for the same."""
    wait = all(one[:2] == other[:2] and (other[2] is None or one[2] < other[2]) for one, other in zip(before, now))
    return wait and len({what for what, *_ in now}) > 1


def _end(states: list[Any]) -> NoReturn:
    if failure.may_speak(failure.FAILED):
        places = "".join(f"\n  rank {rank} at {line} waits for {what}" for rank, (what, line, _) in enumerate(states))
        sys.stderr.write(f"dp2ddp: the ranks wait for each other in different places:{places}\n{ADVICE}.\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)  # the main thread is in a collective that never ends
