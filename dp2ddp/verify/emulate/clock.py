"""The clock that scripts see: it goes on with each look at it, so that two runs of one script tell the same times.

Who looks more than a thousand times in a second waits for something: there it goes on by real time, too.
"""

from __future__ import annotations

import builtins
import datetime
import functools
import sys
import time
import timeit
import types
from collections.abc import Callable
from typing import Any

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_STEP = 1_000_000  # ns between two looks: what trains until some time has passed makes as many steps in each run
_SECOND = 1_000_000_000
_MOST = 1_000  # looks in a second
_APART = 7_000_000_000  # ns between the clocks of two ranks, whose times differ in earnest, too


class _Clock:
    """The clock.

    Args:
        folder, begun, behind: as of `install`.
    """

    def __init__(self, folder: str, begun: int, behind: int) -> None:
        self.passed = 0
        self._folder = folder
        self._began = begun + behind * _APART
        self._real = time.monotonic_ns
        self._last = self._second = self._real()
        self._looks = 0

    def is_for(self, caller: types.FrameType) -> bool:
        """Whether the script is who asks."""
        return caller.f_code.co_filename.startswith(self._folder)

    def look(self) -> int:
        """Its time, in ns since 1970; it goes on."""
        now = self._real()
        if now - self._second > _SECOND:
            self._second, self._looks = now, 0
        self._looks += 1
        self.passed += now - self._last if self._looks > _MOST else _STEP
        self._last = now
        return self._began + self.passed

    def seconds(self) -> float:
        """The same, in seconds."""
        return self.look() / _SECOND


def install(folder: str, begun: int, behind: int) -> None:
    """Give the files below `folder` that clock; libraries, which wait by theirs, keep the machine's.

    A script that waits until some time has passed gets there by looking, or by `time.sleep`.

    Args:
        begun: its time when the script begins, in ns since 1970: the same for all runs that are compared.
        behind: by how many steps of some seconds it is late: a rank's number. What isn't rank 0's on all ranks shows.
    """
    clock = _Clock(folder, begun, behind)

    def replace(name: str, answer: Callable[..., Any], given: int = 0) -> None:
        """Give the script that says no time (only `given` arguments) an `answer`."""
        real = getattr(time, name)

        @functools.wraps(real)
        def asked(*args: Any) -> Any:
            is_now = len(args) == given and clock.is_for(sys._getframe(1))
            return answer(real, *args) if is_now else real(*args)

        setattr(time, name, asked)

    real_sleep, local = time.sleep, time.localtime

    def sleep(seconds: Any, /) -> None:
        if clock.is_for(sys._getframe(1)):
            clock.passed += round(seconds * 1e9)
        real_sleep(seconds)

    time.sleep = sleep
    for name in _CLOCKS:
        replace(name, lambda real: clock.seconds())
        replace(f"{name}_ns", lambda real: clock.look())
    for name in ("localtime", "gmtime", "ctime"):
        replace(name, lambda real: real(clock.seconds()))
    replace("asctime", lambda real: real(local(clock.seconds())))
    replace("strftime", lambda real, form: real(form, local(clock.seconds())), given=1)
    timeit.default_timer = time.perf_counter
    _show_dates(clock)


class _AsReal(type):
    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, datetime.datetime)


def _show_dates(clock: _Clock) -> None:
    """Let the script's files import a `datetime` whose class asks that clock, and makes dates as ever.

    (In the class's own place another one crashes extensions in C that are built on it, as pandas is.)
    """
    real, find = datetime.datetime, builtins.__import__

    class Dates(real, metaclass=_AsReal):  # type: ignore[misc,valid-type]
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return real(*args, **kwargs)

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return real.fromtimestamp(clock.seconds(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return real.fromtimestamp(clock.seconds(), datetime.timezone.utc).replace(tzinfo=None)

        today = now

    shown = types.ModuleType("datetime", datetime.__doc__)
    vars(shown).update({**vars(datetime), "datetime": Dates})

    def importing(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        found = find(name, globals, locals, fromlist, level)
        return shown if found is datetime and clock.is_for(sys._getframe(1)) else found

    builtins.__import__ = importing
