"""The clock that scripts see: it goes on with each look at it, so that two runs of one script tell the same times."""

from __future__ import annotations

import datetime
import functools
import sys
import threading
import time
import timeit
from collections.abc import Callable
from datetime import datetime as Real  # noqa: N812 -- a class of its name takes its place
from typing import Any

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_STEP = 1_000_000  # ns between two looks
_APART = 7_000_000_000  # ns between the clocks of two ranks, whose times differ in earnest, too
_START = 1_750_000_000_000_000_000  # ns since 1970: some day


class _Clock(threading.local):
    """How far it has gone, in ns, for each thread: they take turns in another order each time."""

    def __init__(self, folder: str, behind: int) -> None:
        self.folder, self.start, self.passed = folder, _START + behind * _APART, 0

    def is_asked_by_script(self) -> bool:
        return sys._getframe(2).f_code.co_filename.startswith(self.folder)

    def look(self, step: int = _STEP) -> int:
        self.passed += step
        return self.start + self.passed


def install(folder: str, behind: int) -> None:
    """Give the files below `folder` that clock, and dates to all. Libraries keep the machine's clock: they wait by it.

    A script that waits until some time has passed gets there by looking, or by `time.sleep`.

    Args:
        behind: by how many steps of some seconds it is late: a rank's number. What isn't rank 0's on all ranks shows.
    """
    clock = _Clock(folder, behind)

    def stand_in(real: Callable[[], Any], unit: float) -> Callable[[], Any]:
        @functools.wraps(real)
        def now() -> Any:
            told = clock.look() if clock.is_asked_by_script() else None
            return real() if told is None else told if unit == 1 else told / unit

        return now

    real_sleep = time.sleep

    def sleep(seconds: Any, /) -> None:
        if clock.is_asked_by_script():
            clock.look(round(seconds * 1e9))
        real_sleep(seconds)

    time.sleep = sleep
    for name in _CLOCKS:
        setattr(time, name, stand_in(getattr(time, name), 1e9))
        setattr(time, f"{name}_ns", stand_in(getattr(time, f"{name}_ns"), 1))
    timeit.default_timer = time.perf_counter
    for name in ("localtime", "gmtime", "ctime"):
        setattr(time, name, _of(getattr(time, name), clock))
    for name, place in (("strftime", 1), ("asctime", 0)):
        setattr(time, name, _written(getattr(time, name), place))
    datetime.datetime = _dates(clock)  # type: ignore[misc]


def _of(real: Callable[..., Any], clock: _Clock) -> Callable[..., Any]:
    """A function that takes seconds, or the time that it is."""

    @functools.wraps(real)
    def at(seconds: Any = None, /) -> Any:
        return real(clock.look(0) / 1e9 if seconds is None else seconds)

    return at


def _written(real: Callable[..., Any], place: int) -> Callable[..., Any]:
    """A function that writes a time, or the one that it is."""

    @functools.wraps(real)
    def write(*args: Any) -> Any:
        return real(*args, *([] if len(args) > place else [time.localtime()]))

    return write


def _dates(clock: _Clock) -> Any:
    """`datetime.datetime` by that clock."""

    class Kind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, Real) if cls is dates else super().__instancecheck__(instance)

    class Datetime(Real, metaclass=Kind):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(clock.look(_STEP if clock.is_asked_by_script() else 0) / 1e9, tz)

        @classmethod
        def today(cls) -> Any:
            return cls.fromtimestamp(clock.look(_STEP if clock.is_asked_by_script() else 0) / 1e9)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.now(datetime.timezone.utc).replace(tzinfo=None)

    dates: Any = Datetime
    dates.__name__ = dates.__qualname__ = Real.__name__  # by which it is pickled
    dates.__module__ = Real.__module__
    return dates
