"""The clock that scripts see: it goes on with each look at it, so that two runs of one script tell the same times.

So they give what they name after the time the same names.
"""

from __future__ import annotations

import copyreg
import datetime
import functools
import sys
import time
import timeit
from collections.abc import Callable
from typing import Any

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
#: Functions that take the time that it is where they are given none, and which argument that is.
_OF_NOW = {"localtime": 0, "gmtime": 0, "ctime": 0, "asctime": 0, "strftime": 1}
_STEP = 1_000  # ns between two looks: what waits for a thread by looking has about as long as it says
_APART = 7_000_000_000  # ns between the clocks of two ranks, whose times differ in earnest, too


class _Look:
    """How far the clock has gone, in ns."""

    passed = 0


def install(folder: str, begun: int, behind: int) -> None:
    """Give the files below `folder` that clock; libraries, which wait by theirs, keep the machine's, but for dates.

    A script that waits until some time has passed gets there by looking, or by `time.sleep`.

    Args:
        begun: its time when the script begins, in ns since 1970: the same for all runs that are compared.
        behind: by how many steps of some seconds it is late: a rank's number. What isn't rank 0's on all ranks shows.
    """
    look = _Look()

    def is_script() -> bool:
        return sys._getframe(2).f_code.co_filename.startswith(folder)

    def tell(step: int = _STEP) -> int:
        look.passed += step
        return begun + behind * _APART + look.passed

    def clock(real: Callable[[], Any], unit: float) -> Callable[[], Any]:
        @functools.wraps(real)
        def now() -> Any:
            if not is_script():
                return real()
            return tell() if unit == 1 else tell() / unit

        return now

    def of_now(real: Callable[..., Any], position: int, convert: Callable[[float], Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def function(*given: Any) -> Any:
            asks = len(given) <= position or given[position] is None
            return real(*given[:position], convert(tell() / 1e9)) if asks and is_script() else real(*given)

        return function

    real_sleep, localtime = time.sleep, time.localtime

    def sleep(seconds: Any, /) -> None:
        if is_script():
            look.passed += round(seconds * 1e9)
        real_sleep(seconds)

    time.sleep = sleep
    for name in _CLOCKS:
        setattr(time, name, clock(getattr(time, name), 1e9))
        setattr(time, f"{name}_ns", clock(getattr(time, f"{name}_ns"), 1))
    for name, position in _OF_NOW.items():
        convert = localtime if name in ("asctime", "strftime") else float
        setattr(time, name, of_now(getattr(time, name), position, convert))
    timeit.default_timer = time.perf_counter
    _install_dates(tell, is_script)


def _install_dates(tell: Callable[[int], int], is_script: Callable[[], bool]) -> None:
    """`datetime.datetime`, of whoever imports it from now on, tells that time; it goes on as the script looks."""
    real: Any = datetime.datetime

    class Kind(type):
        """An object of the class itself is one of the other, too."""

        def __instancecheck__(cls, thing: Any) -> bool:
            return isinstance(thing, real) if cls is Dates else super().__instancecheck__(thing)

        def __subclasscheck__(cls, kind: Any) -> bool:
            return issubclass(kind, real) if cls is Dates else super().__subclasscheck__(kind)

    class Dates(real, metaclass=Kind):  # type: ignore[misc]
        """As the class itself."""

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.fromtimestamp(tell(_STEP * is_script()) / 1e9, tz)

        @classmethod
        def utcnow(cls) -> Any:
            return cls.fromtimestamp(tell(_STEP * is_script()) / 1e9, datetime.timezone.utc).replace(tzinfo=None)

        today = now

        def __repr__(self) -> str:
            return f"datetime.{super().__repr__()}"

    # By the name that it is found by, so that objects of both can be pickled.
    Dates.__module__, Dates.__name__, Dates.__qualname__ = "datetime", "datetime", "datetime"
    copyreg.pickle(real, lambda each: (Dates, each.__reduce__()[1]))
    datetime.datetime = Dates  # type: ignore[misc]
