"""When a rank fails: its own traceback, once. The ranks that fail only because that one did stay silent."""

from __future__ import annotations

import atexit
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

from ..base import world
from ..base.location import RUNTIME, here
from ..ranks import file_sync

#: The store's counters: of failed ranks (the launcher adds those that ended without a word), of ranks at their end, of
#: ranks that were told to exit with a code, and of those that ended early, as nobody asks for so many.
FAILED, LEFT, EXITS, RELEASED = "failed", "left", "exits", "released"
#: What a shell adds to the number of the signal that ended a process.
SIGNAL_BASE = 128

#: Whether this rank is on its way out because of an error.
failed = False
#: The script's line that called `sys.exit`; empty if none did.
exit_at = ""

_DEAD_ARE_COUNTED_WITHIN = 1.0  # seconds
_MAIN_SPEAKS_WITHIN = 0.3  # seconds, where all ranks fail alike
_EXITS_ARE_COUNTED_WITHIN = 20.0  # seconds: an interpreter with torch takes some to end, more on a busy machine
_TELLS_WITHIN = 5.0  # seconds
_EXIT_WITHIN = 30  # seconds


def exit_now(code: int) -> NoReturn:
    """Do what was registered for the exit (`atexit`), and end this process."""
    atexit._run_exitfuncs()
    flush()
    os._exit(code)


def flush() -> None:
    """Write out what was printed, also where the script's own `sys.stdout` writes to Python's and never flushes it."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(AttributeError, ValueError, OSError):  # it can't flush; is closed; nobody reads it any more
            stream.flush()  # type: ignore[union-attr]


def install() -> None:
    """Make this rank's `sys.excepthook` and `sys.exit` show an error once, over all ranks."""
    show, leave, pid = sys.excepthook, sys.exit, os.getpid()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global failed
        if os.getpid() != pid or threading.current_thread() is not threading.main_thread():
            # A child, such as a loader's worker, has inherited this hook. multiprocessing's threads show errors by it.
            if os.getpid() == pid or not _parent_has_ended():
                show(kind, error, trace)
            return
        failed = True
        # The interpreter isn't taken down: threads in a collective that never ends would hang or abort that.
        faulthandler.dump_traceback_later(_EXIT_WITHIN, exit=True, file=2)
        interrupted = issubclass(kind, KeyboardInterrupt)
        if not interrupted:
            _let_others_be_counted(error)
        if world.is_main() if interrupted else may_speak(FAILED, error):
            if not interrupted:
                sys.stderr.write(f"dp2ddp: rank {world.rank()} of {world.world_size()} failed:\n")
            if isinstance(error, OSError) and error.filename is not None:
                _leave_out_the_runtime(trace)
            show(kind, error, trace)
        exit_now(SIGNAL_BASE + signal.SIGINT if interrupted else 1)

    def exit_once(code: int | str | None = None, /) -> NoReturn:
        global failed, exit_at
        fails, store = code not in (None, 0), file_sync.store()
        failed, exit_at = failed or fails, here().line
        if fails and store is not None:
            with suppress(RuntimeError):  # its host is gone
                store.add(EXITS, 1)
        leave(1 if isinstance(code, str) and not may_speak(f"exit: {code}") else code)

    sys.excepthook = hook
    sys.exit = exit_once


def _parent_has_ended() -> bool:
    """Whether this child of a rank fails because its parent has ended."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return False
    time.sleep(_MAIN_SPEAKS_WITHIN)  # its files are closed before it counts as ended
    return os.getppid() != parent.pid


def _let_others_be_counted(error: BaseException) -> None:
    """This rank's error may follow from another rank's end, or be another rank's to tell."""
    time.sleep(_DEAD_ARE_COUNTED_WITHIN + (0 if world.is_main() else _MAIN_SPEAKS_WITHIN))
    store, seconds = file_sync.store(), 0.0
    with suppress(RuntimeError):  # the store's host is gone, or nobody was counted
        if isinstance(error.__cause__, file_sync.PeerError):
            seconds = _TELLS_WITHIN
        if store is not None and "LAUNCHER" in world.environment() and file_sync.counted(store, EXITS):
            seconds = _EXITS_ARE_COUNTED_WITHIN
        if store is not None and seconds:
            file_sync.wait_until(lambda: file_sync.counted(store, FAILED) > 0, "the end of a rank", seconds)


def _leave_out_the_runtime(trace: TracebackType | None) -> None:
    """What the system refuses is refused to the script's own call: how the runtime carries that out isn't shown."""
    while trace is not None:
        behind = trace.tb_next
        while behind is not None and behind.tb_frame.f_code.co_filename.startswith(RUNTIME):
            behind = behind.tb_next
        trace.tb_next = behind
        trace = behind


def may_speak(counter: str, error: BaseException | None = None) -> bool:
    """Whether this rank is the first to count itself. If so, it isn't silent any more."""
    store = file_sync.store()
    try:
        first = store is None or store.add(counter, 1) == 1
    except RuntimeError:  # the store's host is gone, of which one RuntimeError or another comes in collectives, too
        first = not isinstance(error, RuntimeError)
    if first and not world.is_main():
        sys.stderr = sys.__stderr__
    return first
