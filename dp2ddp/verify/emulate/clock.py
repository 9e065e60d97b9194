"""The clock that scripts see: it goes on with each look at it, so that two runs of one script tell the same times.

Who looks more than a thousand times in a second waits for something: there it goes on by real time, too.
"""

from __future__ import annotations

import functools
import sys
import time
import timeit
from collections.abc import Callable
from typing import Any

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_STEP = 1_000_000  # ns between two looks: what trains until some time has passed makes as many steps in each run
_SECOND = 1_000_000_000
_MOST = 1_000  # looks in a second
_APART = 7_000_000_000  # ns between the clocks of two ranks, whose times differ in earnest, too


class _Look:
    """How far the clock has gone, in ns, and when it was looked at in earnest."""

    def __init__(self, real: Callable[[], int]) -> None:
        self.passed = 0
        self._real = real
        self._last = self._second = real()
        self._looks = 0

    def go_on(self) -> None:
        """A look at it."""
        now = self._real()
        if now - self._second > _SECOND:
            self._second, self._looks = now, 0
        self._looks += 1
        self.passed += now - self._last if self._looks > _MOST else _STEP
        self._last = now


def install(folder: str, begun: int, behind: int) -> None:
    """Give the files below `folder` that clock; libraries, which wait by theirs, keep the machine's. So do dates.

    (A class in the place of `datetime.datetime` crashes extensions in C that are built on that one, as pandas is.)
    A script that waits until some time has passed gets there by looking, or by `time.sleep`.

    Args:
        begun: its time when the script begins, in ns since 1970: the same for all runs that are compared.
        behind: by how many steps of some seconds it is late: a rank's number. What isn't rank 0's on all ranks shows.
    """
    look = _Look(time.monotonic_ns)

    def is_script() -> bool:
        return sys._getframe(2).f_code.co_filename.startswith(folder)

    def clock(real: Callable[[], Any], unit: float) -> Callable[[], Any]:
        @functools.wraps(real)
        def now() -> Any:
            if not is_script():
                return real()
            look.go_on()
            told = begun + behind * _APART + look.passed
            return told if unit == 1 else told / unit

        return now

    real_sleep = time.sleep

    def sleep(seconds: Any, /) -> None:
        if is_script():
            look.passed += round(seconds * 1e9)
        real_sleep(seconds)

    time.sleep = sleep
    for name in _CLOCKS:
        setattr(time, name, clock(getattr(time, name), 1e9))
        setattr(time, f"{name}_ns", clock(getattr(time, f"{name}_ns"), 1))
    timeit.default_timer = time.perf_counter
