"""The clock that scripts see: it goes on with each look at it, so that two runs of one script tell the same times.

Who looks more than a thousand times in a second waits for something: there it goes on by real time, too.
"""

from __future__ import annotations

import builtins
import datetime
import sys
import time
import timeit
import types
from collections.abc import Mapping
from typing import Any

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_STEP = 1_000_000  # ns between two looks: what trains until some time has passed makes as many steps in each run
_SECOND = 1_000_000_000
_MOST = 1_000  # looks in a second
_APART = 7_000_000_000  # ns between the clocks of two ranks, whose times differ in earnest, too


class _Clock:
    """The clock; `begun` and `behind` as of `install`."""

    def __init__(self, begun: int, behind: int) -> None:
        self.passed = 0
        self._began = begun + behind * _APART
        self._last = self._second = time.monotonic_ns()
        self._looks = 0

    def look(self) -> int:
        """Its time, in ns since 1970; it goes on."""
        now = time.monotonic_ns()
        if now - self._second > _SECOND:
            self._second, self._looks = now, 0
        self._looks += 1
        self.passed += now - self._last if self._looks > _MOST else _STEP
        self._last = now
        return self._began + self.passed

    def seconds(self) -> float:
        """The same, in seconds."""
        return self.look() / _SECOND

    def sleep(self, seconds: Any, /) -> None:
        """`time.sleep`."""
        self.passed += round(seconds * _SECOND)
        time.sleep(seconds)


def install(folder: str, begun: int, behind: int) -> None:
    """Give the files below `folder` modules with that clock; libraries, which wait by theirs, keep the machine's.

    A script that waits until some time has passed gets there by looking, or by `time.sleep`.

    Args:
        begun: its time when the script begins, in ns since 1970: the same for all runs that are compared.
        behind: by how many steps of some seconds it is late: a rank's number. What isn't rank 0's on all ranks shows.
    """
    clock, find = _Clock(begun, behind), builtins.__import__
    local = lambda: time.localtime(clock.seconds())  # noqa: E731
    told: dict[str, Any] = dict.fromkeys(_CLOCKS, clock.seconds) | {f"{name}_ns": clock.look for name in _CLOCKS}
    told |= {name: _or_now(getattr(time, name), clock.seconds) for name in ("localtime", "gmtime", "ctime")}
    told |= {"asctime": _or_now(time.asctime, local), "strftime": _or_now(time.strftime, local, 1)}
    told["sleep"] = clock.sleep
    shown = {
        time: _like(time, told),
        timeit: _like(timeit, {"default_timer": clock.seconds}),
        datetime: _like(datetime, {"datetime": _dates(clock)}),
    }

    def importing(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        found = find(name, globals, locals, fromlist, level)
        is_script = sys._getframe(1).f_code.co_filename.startswith(folder)
        return shown.get(found, found) if is_script and isinstance(found, types.ModuleType) else found

    builtins.__import__ = importing


def _like(module: types.ModuleType, others: Mapping[str, Any]) -> types.ModuleType:
    """A module in which some things are others."""
    made = types.ModuleType(module.__name__, module.__doc__)
    vars(made).update({**vars(module), **others})
    return made


def _or_now(function: Any, now: Any, given: int = 0) -> Any:
    """A function of `time` that is told what time it is where it has only `given` arguments."""
    return lambda *told: function(*told, *([now()] if len(told) == given else []))


class _AsReal(type):
    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, datetime.datetime)


def _dates(clock: _Clock) -> type:
    """A `datetime` whose class asks that clock, and makes dates as ever.

    (In the class's own place another one crashes extensions in C that are built on it, as pandas is.)
    """
    real = datetime.datetime

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

    return Dates
