"""A rank that comes late: it sleeps at random before what it asks of the disk and of the other ranks."""

from __future__ import annotations

import random
import sys
import threading
import time
from types import FrameType
from typing import Any

#: Functions in C before which a rank may sleep, by name: of the disk, of the ranks' store, of a process group.
_DISK = set(
    "open stat lstat listdir scandir mkdir remove unlink rename replace rmdir link symlink truncate fsync "
    "write close read readlines".split()
)
_RANKS = {"set", "get", "add", "allreduce", "allgather", "broadcast", "_allgather_base", "barrier", "wait"}
_MOST = 0.03  # seconds at a time


class Delays:
    """Sleeps of one rank; the same seed makes the same choices.

    Args:
        often: the chance of a sleep at a call.
        budget: seconds of sleep at most, so that a schedule ends.
    """

    def __init__(self, seed: str, often: float, budget: float) -> None:
        self._chance = random.Random(seed)
        self._often, self._left = often, budget

    def install(self) -> None:
        """From now on, in all threads."""
        threading.setprofile(self._at)
        sys.setprofile(self._at)

    def _at(self, frame: FrameType, event: str, function: Any) -> None:
        if event != "c_call" or self._left <= 0 or threading.current_thread().daemon:  # the runtime's own
            return
        name = getattr(function, "__name__", "")
        often = self._often if name in _DISK else self._often / 10 if name in _RANKS else 0.0
        if often and self._chance.random() < often:
            pause = self._chance.uniform(0, _MOST)
            self._left -= pause
            time.sleep(pause)
