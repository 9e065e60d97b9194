"""What is being done: a line on a terminal, which is wiped away before anything else is said."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_WIPE = "\r\x1b[2K"
_WIDEST = 79
#: What the line says; empty where there is none.
_line: list[str] = []


@contextmanager
def shown(what: str, *, wanted: bool) -> Iterator[None]:
    """Shows a line while the block runs, if standard error is a terminal.

    Args:
        what: what is being done, until `doing` says otherwise.
        wanted: False for no line.
    """
    if wanted and sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        _line.append(what)
        doing(what)
    try:
        yield
    finally:
        end()


def doing(what: str) -> None:
    """From now on, `what` is being done."""
    if _line:
        _line[:] = [what]
        print(_WIPE, what[:_WIDEST], sep="", end="", file=sys.stderr, flush=True)


def end() -> None:
    """Takes the line away: now something else is shown."""
    if _line:
        _line.clear()
        print(_WIPE, end="", file=sys.stderr, flush=True)
