"""Signals that the script handles: its handlers run on all ranks, at the end of one and the same exchange.

Signals come to each rank at another line. A rank that saved and left at once would let the others wait, and those that
wait in a collective can't run a handler at all. So a signal is only noted. The next exchange carries what any rank has
noted, and at its end all of them handle it: Ctrl-C (`KeyboardInterrupt`), SLURM's warnings.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Callable

from .file_sync import store

_OWN = (
    "KILL STOP CONT TSTP TTIN TTOU CHLD CLD PIPE URG WINCH IO POLL ALRM VTALRM PROF SEGV BUS FPE ILL ABRT IOT TRAP SYS"
)
#: The signals that come from outside, and are passed on. The others are each process's own: timers, children, errors.
FROM_OUTSIDE = sorted(set(signal.valid_signals()) - {getattr(signal, f"SIG{name}", None) for name in _OWN.split()})

_ALONE_AFTER = 5.0  # seconds without an exchange, after which a rank handles a signal by itself; or, if that is more,
_STEPS = 2  # times the longest of the latest pauses between exchanges
_COPIES_WITHIN = 1.0  # seconds: who signals all ranks signals some of them after they have handled it

_handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
_noted: dict[int, float] = {}  # since when
_pauses, _met_at = deque([0.0], maxlen=8), math.inf  # between exchanges, in seconds; when the last one was
_handled: dict[int, float] = {}  # when, the last time

#: Set by who is in the middle of a message: no handler runs there.
held = False


def install() -> None:
    """Take over what the script has set by `signal.signal`, and what it will set."""
    original = signal.signal

    def set_handler(number: Any, handler: Any) -> Any:
        before = original(number, _note if callable(handler) and number in FROM_OUTSIDE else handler)
        known = _handlers.pop(number, None)
        if callable(handler) and number in FROM_OUTSIDE:
            _handlers[number] = handler
            found = store()
            if found is not None and handler is not signal.default_int_handler:
                found.add(handled(number), 1)
        return known if before is _note else before

    with suppress(ValueError):  # not in the main thread, which alone may ask for signals
        for number in FROM_OUTSIDE:
            handler = signal.getsignal(number)
            if callable(handler):
                set_handler(number, handler)
        signal.signal = set_handler  # type: ignore[assignment]


def handled(number: int) -> str:
    """The store's key for whether the script handles a signal, and ends by itself if it wants to."""
    return f"handles{number}"


def noted() -> list[int]:
    """The signals of which this rank tells the others in the exchange that comes now.

    None in a thread of its own: handlers run in the main one.
    """
    return list(_noted) if _noted and threading.current_thread() is threading.main_thread() else []


def handle(told: Iterable[Sequence[int]]) -> None:
    """Run the script's handlers of the signals of which any rank has told. All ranks come here, at the same line."""
    global _met_at
    before, _met_at = _met_at, time.monotonic()
    _pauses.append(_met_at - before)
    for number in sorted({number for each in told for number in each}):
        _run(number, sys._getframe(1))


def _run(number: int, frame: FrameType | None) -> None:
    _noted.pop(number, None)
    _handled[number] = time.monotonic()
    handler = _handlers.get(number)
    if handler is not None:
        handler(number, frame)


def _note(number: int, frame: FrameType | None) -> None:
    """The handler of all signals that the script handles."""
    now, patience = time.monotonic(), max(_ALONE_AFTER, _STEPS * max(_pauses))
    waits_in_vain = now - _noted.get(number, now) > patience
    if store() is None or (waits_in_vain and not held):  # in a child process; or no exchange comes
        _run(number, frame)
    elif waits_in_vain or (number not in _noted and now - _handled.get(number, -math.inf) > _COPIES_WITHIN):
        _noted.setdefault(number, now)
        again = threading.Timer(patience + 0.1, _remind, [number])
        again.daemon = True
        again.start()


def _remind(number: int) -> None:
    if number in _noted:
        signal.pthread_kill(threading.main_thread().ident or 0, number)
