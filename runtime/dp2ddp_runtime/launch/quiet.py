"""One voice: on ranks other than 0, prints, progress bars and log records go nowhere.

Nothing is skipped: progress bars still count, and what rank 0 turns into text is turned into text here as well, because
the ranks may have to find out a tensor's text together. An error that ends the rank, or a thread, is still heard.
"""

from __future__ import annotations

import atexit
import bdb
import functools
import io
import json
import linecache
import logging
import logging.handlers
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import redirect_stderr
from typing import Any

from ..base import voice, world
from ..base.location import files
from . import launcher
from .failure import flush

_TERMINAL = "dp2ddp/terminal"


def adopt_terminal(store: Any) -> None:
    """Whether input and output are a terminal's is rank 0's answer on all ranks: scripts decide by it."""
    streams: list[Any] = [sys.stdin, sys.stdout, sys.stderr]  # a script's own may have no such method
    if world.is_main():
        store.set(_TERMINAL, json.dumps([hasattr(each, "isatty") and each.isatty() for each in streams]))
        return
    for stream, is_terminal in zip(streams, json.loads(store.get(_TERMINAL))):
        if hasattr(stream, "isatty"):
            stream.isatty = functools.partial(bool, is_terminal)


def _lead_output(descriptor: int) -> None:
    flush()
    os.dup2(descriptor, 1)


def hold_until_setup(calls_setup: bool = False) -> Callable[..., None]:
    """What comes before `setup` is printed once: by the launcher, which has run it, or else by rank 0.

    Whether a rank other than 0 of torchrun's will ever call `setup` isn't known when it imports this package: it
    may as well be one of somebody else's training, whose ranks all print. So, unless it is known (`calls_setup`),
    its output is held only if one of the files that are being run and imported has a call of `setup` in it; and it
    is shown after all if that call leaves the ranks to the script's own DDP, or if the process ends without it
    (`--help`, another branch).

    Returns:
        `release(show=...)`: standard output leads where it led, where what was held is shown first, or else dropped.
    """
    env, pid = world.environment(), os.getpid()
    is_child = launcher.JOINED in os.environ or multiprocessing.parent_process() is not None
    begins = "LAUNCHER" not in env and world.GPUS not in env  # not by the launcher, nor again (`devices.choose_device`)
    if is_child or (env.get("RANK", "0") == "0" and begins) or "WORLD_SIZE" not in env:
        return lambda show: None  # a rank's child got its rank's output
    if not calls_setup and world.PLACE not in os.environ and not any(map(_calls_setup, files())):
        return lambda show: None
    # Below Python, for what C++ and child processes print.
    real, held = os.dup(1), tempfile.TemporaryFile()  # noqa: SIM115 - open until it is released
    _lead_output(held.fileno())

    def release(show: bool) -> None:
        if held.closed or pid != os.getpid():
            return
        _lead_output(real)
        if show:
            held.seek(0)
            with open(real, "wb", closefd=False) as shown:
                shutil.copyfileobj(held, shown)
        os.close(real)
        held.close()

    atexit.register(release, show="LAUNCHER" not in env)
    return release


def _calls_setup(filename: str) -> bool:
    text = "".join(linecache.getlines(filename))
    return "dp2ddp_runtime" in text and ".setup(" in text


def quiet() -> None:
    """Silence this process: `print`, standard output and error, `tqdm`, `logging`, `warnings`, debuggers.

    Standard output is redirected below Python, so that C++ code and child processes are silent, too. Standard error is
    not, because it may be an error that these have to tell; `sys.__stderr__` still leads there.
    """
    flush()
    voice.silence()
    sys.breakpointhook = lambda *args, **kwargs: None
    bdb.Bdb.set_trace = lambda *args, **kwargs: None  # type: ignore[method-assign]
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
        if isinstance(self, logging.handlers.MemoryHandler) or voice.is_heard():
            return original(self, record)  # the first hands the records on later, when rank 0's does
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
