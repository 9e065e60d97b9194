"""One voice: on ranks other than 0, what would go to the terminal or to a log file goes nowhere.

Nothing is skipped: progress bars still count, and what rank 0 turns into text is turned into text here as well, because
the ranks may have to find out a tensor's text together. Standard error stays open, for tracebacks.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import io
import logging
import logging.handlers
import os
import sys
import warnings
from contextlib import suppress
from typing import Any, Callable, TextIO


def quiet() -> None:
    """Silence this process: `print`, standard output, `tqdm`, `logging`, `warnings`, `breakpoint()`.

    Standard output is redirected below Python, so that C++ code and child processes are silent, too. There is no
    way back.
    """
    nowhere = open(os.devnull, "w", encoding="utf-8", errors="replace")  # noqa: SIM115 - lives as long as the process
    if sys.stderr is not None:
        nowhere.isatty = sys.stderr.isatty  # type: ignore[method-assign] # by which bars are disabled, or not
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None:
            stream.flush()
    os.dup2(nowhere.fileno(), 1)
    _silence_print(nowhere)
    _silence_logging()
    _silence_tqdm(nowhere)
    # As `warnings` does it on rank 0: with the script's own `formatwarning`, if there is one.
    warnings.showwarning = lambda message, category, filename, lineno, file=None, line=None: _drop(
        warnings.formatwarning(message, category, filename, lineno, line)
    )
    sys.breakpointhook = _drop


def _drop(*args: Any, **kwargs: Any) -> None:
    pass


def _silence_print(nowhere: TextIO) -> None:
    # Standard output leads nowhere already; what is left is print(..., file=sys.stderr).
    original = builtins.print

    @functools.wraps(original)
    def silent_print(*values: Any, file: Any = None, **kwargs: Any) -> None:
        original(*values, file=nowhere if _is_stderr(file) else file, **kwargs)

    builtins.print = silent_print


def _silence_logging() -> None:
    """Loggers, levels and filters stay as they are; handlers write nothing, and touch no file."""
    original = logging.Handler.handle

    def handle(self: logging.Handler, record: logging.LogRecord) -> Any:
        if isinstance(self, logging.handlers.MemoryHandler):
            return original(self, record)  # it hands the records on later, when rank 0's does
        kept = self.filter(record)
        try:
            if kept:
                self.format(kept if isinstance(kept, logging.LogRecord) else record)
        except Exception:  # noqa: BLE001 - rank 0 reports it, and formats this (`logging.Handler.handleError`)
            with suppress(Exception):
                _drop(logging.raiseExceptions and f"{record.msg!r} {record.args}")
        return kept

    # A handler opens its file as soon as it is made, and mode "w" would empty the one that rank 0 writes.
    def open_nothing(self: logging.FileHandler) -> io.TextIOWrapper:
        return open(os.devnull, "w", encoding=self.encoding)

    logging.Handler.handle = handle  # type: ignore[method-assign]
    logging.FileHandler._open = open_nothing  # type: ignore[method-assign]
    logging.handlers.RotatingFileHandler.doRollover = _drop  # type: ignore[method-assign]
    logging.handlers.TimedRotatingFileHandler.doRollover = _drop  # type: ignore[method-assign]


def _silence_tqdm(nowhere: TextIO) -> None:
    """Send the bars nowhere, rather than disable them: `update()` of a disabled bar doesn't count."""
    try:
        from tqdm import std
    except ImportError:
        return
    std.tqdm.__init__ = _redirected(std.tqdm.__init__, sys.stderr, nowhere)
    std.tqdm.write = classmethod(_redirected(std.tqdm.write.__func__, sys.stdout, nowhere))


def _redirected(method: Callable[..., Any], default: Any, nowhere: TextIO) -> Callable[..., Any]:
    """`method` with its argument `file`, which is `default` where it isn't given, led nowhere if that's stderr."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def silent(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        if _is_stderr(call.arguments.get("file") or default):
            call.arguments["file"] = nowhere
        return method(*call.args, **call.kwargs)

    return silent


def _is_stderr(file: Any) -> bool:
    return file is not None and (file is sys.stderr or file is sys.__stderr__)
