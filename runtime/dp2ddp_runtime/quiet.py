"""One voice: on ranks other than 0, what would go to the terminal or to a log file goes nowhere.

Nothing is skipped: progress bars still count, and what rank 0 turns into text is turned into text here as well, because
the ranks may have to find out a tensor's text together. An error that ends the rank, or a thread, is still heard.
"""

from __future__ import annotations

import io
import logging
import logging.handlers
import os
import sys
import threading
from contextlib import redirect_stderr
from typing import Any


def hold_output() -> int:
    """Let standard output lead nowhere. Returns a descriptor of what it was, for `lead_output`."""
    kept = os.dup(1)
    lead_output(os.open(os.devnull, os.O_WRONLY))
    return kept


def lead_output(descriptor: int) -> None:
    """Let standard output lead where `descriptor` leads, which is closed."""
    sys.stdout.flush()
    os.dup2(descriptor, 1)
    os.close(descriptor)


def quiet() -> None:
    """Silence this process: `print`, standard output and error, `tqdm`, `logging`, `warnings`, `breakpoint()`.

    Standard output is redirected below Python, so that C++ code and child processes are silent, too. Standard error is
    not, because it may be an error that these have to tell; `sys.__stderr__` still leads there.
    """
    os.close(hold_output())
    nowhere = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - as Python's own
    nowhere.isatty = sys.stderr.isatty  # type: ignore[method-assign] # by which bars are disabled, or not
    sys.stderr = nowhere
    sys.breakpointhook = lambda *args, **kwargs: None
    _silence_logging()
    show = threading.excepthook

    def show_aloud(args: Any) -> None:
        with redirect_stderr(sys.__stderr__):
            show(args)

    threading.excepthook = show_aloud


def _silence_logging() -> None:
    """Loggers, levels and filters stay as they are; handlers write nothing, and touch no file."""
    original = logging.Handler.handle

    def handle(self: logging.Handler, record: logging.LogRecord) -> Any:
        if isinstance(self, logging.handlers.MemoryHandler):
            return original(self, record)  # it hands the records on later, when rank 0's does
        kept = self.filter(record)
        if kept:
            try:
                self.format(kept if isinstance(kept, logging.LogRecord) else record)
            except Exception:  # noqa: BLE001 - as the handlers' own `emit` does
                self.handleError(record)
        return kept

    # A handler opens its file as soon as it is made, and mode "w" would empty the one that rank 0 writes.
    def open_nothing(self: logging.FileHandler) -> io.TextIOWrapper:
        return open(os.devnull, "w", encoding=self.encoding)

    logging.Handler.handle = handle  # type: ignore[method-assign]
    logging.FileHandler._open = open_nothing  # type: ignore[method-assign]
    for rotating in (logging.handlers.RotatingFileHandler, logging.handlers.TimedRotatingFileHandler):
        rotating.doRollover = lambda self: None  # type: ignore[method-assign]
