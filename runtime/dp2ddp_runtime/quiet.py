"""One voice: on ranks other than 0, what would go to the terminal or to a log file goes nowhere.

Nothing is skipped: progress bars still count, strings are still formatted, so all ranks keep in step. Standard error
stays open, for tracebacks.
"""

from __future__ import annotations

import builtins
import functools
import io
import logging
import os
import sys
import warnings
from typing import Any, Callable, TextIO


def quiet() -> None:
    """Silence this process: `print`, standard output, `tqdm`, `logging`, `warnings`, `breakpoint()`.

    Standard output is redirected below Python, so that C++ code and child processes are silent, too. There is no
    way back.
    """
    _silence_stdout()
    _silence_print()
    _silence_logging()
    _silence_tqdm()
    warnings.showwarning = _nothing
    sys.breakpointhook = _nothing


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _silence_stdout() -> None:
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None:
            stream.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _silence_print() -> None:
    # Standard output leads nowhere already; what is left is print(..., file=sys.stderr).
    original = builtins.print

    @functools.wraps(original)
    def silent_print(*values: Any, file: Any = None, **kwargs: Any) -> None:
        if file is None or not _is_stderr(file):
            original(*values, file=file, **kwargs)

    builtins.print = silent_print


def _silence_logging() -> None:
    logging.disable(logging.CRITICAL)

    # A handler opens its file as soon as it is made, and mode "w" would empty the one that rank 0 writes.
    def open_nothing(self: logging.FileHandler) -> io.TextIOWrapper:
        return open(os.devnull, "w", encoding=self.encoding)

    logging.FileHandler._open = open_nothing  # type: ignore[method-assign]


def _silence_tqdm() -> None:
    """Send the bars nowhere, rather than disable them: `update()` of a disabled bar doesn't count."""
    try:
        from tqdm import std
    except ImportError:
        return
    std.tqdm.__init__ = _with_silent_file(std.tqdm.__init__, position=4, default=sys.stderr)
    std.tqdm.write = classmethod(_with_silent_file(std.tqdm.write.__func__, position=1, default=None))


def _with_silent_file(function: Callable[..., Any], position: int, default: TextIO | None) -> Callable[..., Any]:
    """`function(self, ...)` with its `file` argument led nowhere if that is standard error.

    Args:
        function: a method.
        position: of `file` among the arguments after `self`.
        default: what it writes to if `file` is None; None for standard output, which is silent already.
    """
    null = open(os.devnull, "w")  # noqa: SIM115 - lives as long as the process

    @functools.wraps(function)
    def silent(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = args[position] if len(args) > position else kwargs.get("file")
        if _is_stderr(default if given is None else given):
            if len(args) > position:
                args = (*args[:position], null, *args[position + 1 :])
            else:
                kwargs["file"] = null
        return function(self, *args, **kwargs)

    return silent


def _is_stderr(file: TextIO | None) -> bool:
    return file is not None and (file is sys.stderr or file is sys.__stderr__)
