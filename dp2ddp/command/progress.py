"""What is being done: a line on a terminal for what takes long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.status import Status

#: What takes less than so many seconds needs no line.
PATIENCE = 2.0


@dataclass
class _Work:
    """What is being done. Its line comes up once patience has run out; rich is imported no sooner.

    Attributes:
        what: in words.
    """

    what: str
    line: Status | None = None

    def show(self) -> None:
        from rich.console import Console
        from rich.status import Status

        with _lock:
            if _current is self:
                self.line = Status(self.what, console=Console(stderr=True))
                self.line.start()


_lock = threading.RLock()
_current: _Work | None = None


@contextmanager
def shown(what: str, *, wanted: bool) -> Iterator[None]:
    """Shows a line while the block runs, if it runs for longer than `PATIENCE` and standard error is a terminal.

    Args:
        what: what is being done, until `doing` says otherwise.
        wanted: False for no line.
    """
    global _current
    if not wanted or sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    _current = _Work(what)
    timer = threading.Timer(PATIENCE, _current.show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        end()


def doing(what: str) -> None:
    """From now on, `what` is being done."""
    with _lock:
        if _current is not None:
            _current.what = what
            if _current.line is not None:
                _current.line.update(what)


def end() -> None:
    """Takes the line away: now something else is shown."""
    global _current
    with _lock:
        work, _current = _current, None
        if work is not None and work.line is not None:
            work.line.stop()
