"""Signals that end a program end it orderly: what it started and wrote is removed before it is gone."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNAL_BASE = 128  # a shell's exit code for a process that signal n ended is 128 + n
_ENDING = [signal.SIGTERM] if sys.platform == "win32" else [signal.SIGTERM, signal.SIGHUP]


@contextmanager
def ending_orderly() -> Iterator[None]:
    """While this lasts, signals that end the program leave the context by `SystemExit`; a second one ends it at once.

    Signals that are ignored (`nohup`) or that somebody else handles stay as they are.
    """
    taken: list[signal.Signals] = []

    def end(number: int, frame: object) -> None:
        for each in taken:
            signal.signal(each, signal.SIG_DFL)
        _codes.append(SIGNAL_BASE + number)
        heed()

    if threading.current_thread() is threading.main_thread():
        taken = [number for number in _ENDING if signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(SIGNAL_BASE + signal.SIGINT) from None
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
        _codes.clear()


def heed() -> None:
    """Raise `SystemExit` if a signal has come; again, should somebody have caught it: parts of torch do at import."""
    if _codes:
        raise SystemExit(_codes[0])


_codes: list[int] = []  # the exit code, once there was a signal
