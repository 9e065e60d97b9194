"""A progress bar on anything that takes long, on a terminal: what is being done, and how far it is."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: What takes less than so many seconds needs no bar.
PATIENCE = 2.0


@dataclass
class _Bar:
    """What is being done. The bar itself comes up once patience has run out; rich is imported no sooner.

    Attributes:
        what: in words.
        total: of how many steps, None where that isn't known.
        done: how many are done.
    """

    what: str
    total: int | None = None
    done: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    shown: tuple[Progress, TaskID] | None = None
    ended: bool = False

    @property
    def said(self) -> str:
        return self.what if self.total is None else f"{self.what} ({self.done} of {self.total})"

    def show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self.lock:
            if self.ended:
                return
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self.shown = bar, bar.add_task(self.said, total=self.total, completed=self.done)
            bar.start()

    def renew(self) -> None:
        with self.lock:
            if self.shown is not None:
                bar, task = self.shown
                bar.update(task, description=self.said, total=self.total, completed=self.done)

    def end(self) -> None:
        with self.lock:
            self.ended = True
            if self.shown is not None:
                self.shown[0].stop()
                self.shown = None


_current: _Bar | None = None


@contextmanager
def shown(what: str, *, wanted: bool) -> Iterator[None]:
    """Shows a bar while the block runs, if it runs for longer than `PATIENCE` and standard error is a terminal.

    Args:
        what: what is being done, until `doing` says otherwise.
        wanted: False for no bar.
    """
    global _current
    if not wanted or not sys.stderr.isatty():
        yield
        return
    _current = bar = _Bar(what)
    timer = threading.Timer(PATIENCE, bar.show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        end()


def doing(what: str, total: int | None = None) -> None:
    """From now on, `what` is being done, in so many steps."""
    if _current is not None:
        _current.what, _current.total, _current.done = what, total, 0
        _current.renew()


def advance(steps: int) -> None:
    """So many steps are done."""
    if _current is not None:
        _current.done += steps
        _current.renew()


def end() -> None:
    """Takes the bar away: now something else is shown."""
    global _current
    if _current is not None:
        _current.end()
        _current = None
