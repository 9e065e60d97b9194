"""Rank 0 has the terminal: the others print nothing, ask nobody, and stop at no breakpoint."""

from __future__ import annotations

import bdb
import builtins
import functools
import getpass
import itertools
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Callable

from .imported import replace

#: What is replaced, and why; `docs/architecture.md` has the table.
REPLACED = {
    "builtins.input": "rank 0 asks; the others get its answer, whenever they ask",
    "getpass.getpass": "the same",
    "click.termui.visible_prompt_func": "the same, for `click.prompt` and `click.confirm`",
    "click.termui.hidden_prompt_func": "the same",
    "sys.stdout": "another rank's leads nowhere",
    "sys.stderr": "the same",
    "os.get_terminal_size": "another rank's output has the size of rank 0's terminal",
    "bdb.Bdb.set_trace": "another rank has no terminal: `breakpoint()` does nothing there",
}


def terminals() -> list[str]:
    """The terminals of standard input, output and error, by name; "" where that is none."""
    return [os.ttyname(own) if os.isatty(own) else "" for own in range(3)] if sys.platform != "win32" else [""] * 3


def unread(terminal: str) -> int:
    """A terminal that can be asked for its size (`stty size`), and not be read. Without one, nothing."""
    if terminal:
        with suppress(OSError):
            return os.open(terminal, os.O_WRONLY | os.O_NOCTTY)
    return os.open(os.devnull, os.O_RDWR)


def silence(shown: Sequence[str], stderr: bool = True) -> int:
    """From now on this rank says nothing, below Python neither. Rank 0 alone doesn't call this.

    Args:
        shown: rank 0's `terminals()`: by whether they are terminals, and how large, scripts decide.
        stderr: whether what C++ writes to standard error goes nowhere, too; else it stays (rank 0 keeps it in a file).

    Returns:
        Where standard error led before, for an error that ends this rank.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    aloud = os.dup(2)
    for own in (0, 1, 2) if stderr else (0, 1):
        nothing = unread("" if own else shown[0])
        os.dup2(nothing, own)
        os.close(nothing)
    streams: Any = sys
    nowhere = functools.partial(open, os.devnull, "w", encoding="utf-8", errors="replace")
    streams.stdout, streams.stderr = nowhere(), nowhere()
    for stream, terminal in zip((streams.stdout, streams.stderr), shown[1:]):
        stream.isatty = functools.partial(bool, terminal)
    os.get_terminal_size = _sized(os.get_terminal_size, shown)
    bdb.Bdb.set_trace = lambda *args, **kwargs: None  # type: ignore[method-assign]
    os.environ["MPLBACKEND"] = "agg"  # no windows, for who imports it later
    matplotlib: Any = sys.modules.get("matplotlib")
    if matplotlib is not None:
        matplotlib.use("agg")
    return aloud


def _sized(real: Callable[[int], os.terminal_size], shown: Sequence[str]) -> Any:
    @functools.wraps(real)
    def size(fd: int = 1, /) -> os.terminal_size:
        if fd not in (1, 2):
            return real(fd)
        terminal = unread(shown[fd])
        try:
            return real(terminal)
        finally:
            os.close(terminal)

    return size


def share_answers(ask: Callable[[str, Callable[[], Any]], Any]) -> None:
    """From now on what the user is asked for is asked once.

    Args:
        ask: gives what rank 0's call gave: on rank 0 it calls, and tells; on another rank it waits for that.
    """
    asked = [(builtins, "input"), (getpass, "getpass")]
    if "click.termui" in sys.modules:  # which has kept the functions
        asked += [(sys.modules["click.termui"], f"{kind}_prompt_func") for kind in ("visible", "hidden")]
    numbers = itertools.count()
    replace([(owner, name, _once(getattr(owner, name), ask, numbers)) for owner, name in asked])


def _once(real: Callable[..., Any], ask: Callable[[str, Callable[[], Any]], Any], numbers: Any) -> Callable[..., Any]:
    inside: list[bool] = []  # one may call another

    @functools.wraps(real)
    def asked(*args: Any, **kwargs: Any) -> Any:
        if inside:
            return real(*args, **kwargs)
        inside.append(True)
        try:
            return ask(f"answer/{next(numbers)}", lambda: real(*args, **kwargs))
        finally:
            inside.pop()

    return asked
