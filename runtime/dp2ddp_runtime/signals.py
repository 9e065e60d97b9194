"""Signals: their handlers run on all ranks, at the same line.

They come to each rank at another line, or to one alone. A rank that saved and left at once would let the others wait.
So a signal is only noted; the next message carries it, and at its end all ranks run their handlers. Where no message
comes for some seconds, a rank runs its own.
"""

from __future__ import annotations

import math
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Callable

from .imported import replace
from .world import world

#: What is replaced, and why; `docs/architecture.md` has the table.
REPLACED = {"signal.signal": "handlers of SIGINT, SIGTERM and SIGUSR1 run on all ranks at the same line"}
_SHARED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]
_COPIES_WITHIN = 1.0  # seconds: who signals all ranks signals some of them after they have handled it


class Signals:
    """A rank's signals. One object, `signals`. Each comes (also while C++ waits), is noticed (Python comes to its
    handler), is noted (`world.noted`), is told of with the next message, and is handled by the script's own handler.

    Attributes:
        alone_after: seconds without a message, after which a rank handles a signal by itself.
        noticed: when Python has last come to a signal's handler, by its number.
    """

    def __init__(self) -> None:
        self.alone_after = 5.0
        self.noticed: dict[int, float] = {}
        self._handled: dict[int, float] = {}
        self._woken: socket.socket | None = None

    def share(self) -> None:
        """Take over what the script has set by `signal.signal`, and what it will set."""
        original = signal.signal

        def set_handler(number: Any, handler: Any) -> Any:
            handler = handler.handler if isinstance(handler, _Noting) else handler  # that `signal.getsignal` gave
            before = original(number, _Noting(handler) if callable(handler) and number in _SHARED else handler)
            return before.handler if isinstance(before, _Noting) else before

        if threading.current_thread() is not threading.main_thread():
            return  # the main thread alone may ask for signals
        for number in _SHARED:
            handler = signal.getsignal(number)
            if callable(handler):
                set_handler(number, handler)
        replace([(signal, "signal", set_handler)])
        self._woken, wakes = socket.socketpair()
        for each in (self._woken, wakes):
            each.setblocking(False)
        another = signal.set_wakeup_fd(wakes.detach(), warn_on_full_buffer=False)
        if another != -1:  # such as an event loop's
            self._woken = None
            signal.set_wakeup_fd(another, warn_on_full_buffer=False)
        world.signals = self._handle

    def came(self) -> bytes:
        """The numbers of those that have come since the last time."""
        with suppress(BlockingIOError):
            return self._woken.recv(4096) if self._woken is not None else b""
        return b""

    def note(self, number: int, frame: FrameType | None) -> None:
        """A signal has come, and Python to its handler."""
        now = self.noticed[number] = time.monotonic()
        since = world.noted.get(number)
        if world.alone or world.left_at or (since is not None and now - since > self.alone_after):  # no message comes
            self._run(number, frame)
        elif since is None and now - self._handled.get(number, -math.inf) > _COPIES_WITHIN:
            world.noted[number] = now
            again = threading.Timer(self.alone_after + 0.1, _remind, [number])
            again.daemon = True
            again.start()

    def _handle(self, told: Sequence[Sequence[int]]) -> None:
        """Run the handlers of the signals of which any rank has told. All ranks come here, at the same message."""
        for number in sorted({number for each in told for number in each}):
            self._run(number, sys._getframe(1))

    def _run(self, number: int, frame: FrameType | None) -> None:
        world.noted.pop(number, None)
        self._handled[number] = time.monotonic()
        noting = signal.getsignal(number)
        if isinstance(noting, _Noting):
            noting.handler(number, frame)


signals = Signals()


class _Noting:
    """What stands in the place of the script's handler of a shared signal."""

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        signals.note(number, frame)


def _remind(number: int) -> None:
    if number in world.noted:
        signal.pthread_kill(threading.main_thread().ident or 0, number)
