"""Signals that the script handles: its handlers run on all ranks, after one and the same exchange.

Signals come to each rank at another line. A rank that saved and left at once would let the others wait, and those that
wait in a collective can't run a handler at all. So a signal is noted, and all ranks handle it in the exchange that they
meet in next: Ctrl-C (`KeyboardInterrupt`), SLURM's warnings. Where no exchange comes they meet wherever they are.
"""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from ..base import waiting, world
from .file_sync import counted, store

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_OWN = (
    "KILL STOP CONT TSTP TTIN TTOU CHLD CLD PIPE URG WINCH IO POLL ALRM VTALRM PROF SEGV BUS FPE ILL ABRT IOT TRAP SYS"
)
#: The signals that come from outside, and are passed on. The others are each process's own: timers, children, errors.
FROM_OUTSIDE = sorted(set(signal.valid_signals()) - {getattr(signal, f"SIG{name}", None) for name in _OWN.split()})

_POLL = 0.005  # seconds
_MEETS_WITHIN = 0.5  # seconds that a rank waits in an exchange for the others to be signalled
_MEETS_AGAIN_WITHIN = 1.5  # seconds; longer than from one reminder to the next, or ranks could miss each other for ever
_REMINDED_AFTER = 1.0  # seconds
_ALONE_AFTER = 10.0  # seconds after which a rank handles a signal by itself


class _Noted(NamedTuple):
    turn: int
    frame: FrameType | None
    since: float


_handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
_noted: dict[int, _Noted] = {}
_turns: Counter[int] = Counter()
_exchanges = 0
_meets = False
#: While this rank is in the middle of a message, no handler runs.
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


def look(exchanges: int | None = None) -> None:
    """Handle what has been noted, if all ranks are here with it.

    Args:
        exchanges: how many there have been, if this is at the end of one; then all ranks are at the same line.
    """
    global _exchanges, _meets
    _exchanges = _exchanges if exchanges is None else exchanges
    if not _noted or _meets or held or threading.current_thread() is not threading.main_thread():
        return
    for number, noted in list(_noted.items()):
        _meets = True  # a signal that comes meanwhile would bring this rank here twice
        try:
            alone = time.monotonic() - noted.since > _ALONE_AFTER
            handles = alone or _all_are_here(f"{number}/{noted.turn}/{_exchanges}", again=exchanges is None)
        finally:
            _meets = False
        if handles:
            del _noted[number]
            _handlers[number](number, noted.frame)


def remind(found: Store) -> None:
    """For the watchdog: signal this rank again if no exchange came, and signal it if another rank was."""
    for number in list(_handlers):
        noted = _noted.get(number)
        due = noted and time.monotonic() - noted.since > _REMINDED_AFTER and waiting.oldest() is None
        if due or (not noted and counted(found, f"signal{number}/{_turns[number] + 1}")):
            signal.pthread_kill(threading.main_thread().ident or 0, number)


def _note(number: int, frame: FrameType | None) -> None:
    """The handler of all signals that the script handles."""
    found = store()
    if found is None:  # a child process
        _handlers[number](number, frame)
    elif number in _noted:
        look()
    else:
        _turns[number] += 1
        _noted[number] = _Noted(_turns[number], frame, time.monotonic())
        with suppress(RuntimeError):  # the store's host is gone
            found.add(f"signal{number}/{_turns[number]}", 1)


def _all_are_here(what: str, again: bool) -> bool:
    """Whether all ranks have come to handle a signal, which those who waited in vain for another one don't any more.

    Args:
        again: whether to meet once more after that, where no exchange comes.
    """
    found, told, within = store(), b"", _MEETS_WITHIN
    assert found is not None
    rounds = (f"{what}/{turn}" for turn in itertools.count(1))
    try:
        while again and found.compare_set(f"{what}/verdict", "", "") == b"go on":
            what, within = next(rounds), _MEETS_AGAIN_WITHIN
        end = time.monotonic() + within
        found.add(what, 1)
        while not told:
            complete = counted(found, what) >= world.world_size()
            verdict = "run" if complete else "go on" if time.monotonic() > end else ""
            told = found.compare_set(f"{what}/verdict", "", verdict)
            time.sleep(_POLL)
    except RuntimeError:  # the store's host is gone, and nobody left to meet
        return True
    return told == b"run"
