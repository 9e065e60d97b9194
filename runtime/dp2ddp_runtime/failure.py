"""When a rank fails: its own traceback, once. The ranks that fail only because that one did stay silent."""

from __future__ import annotations

import atexit
import os
import re
import signal
import sys
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

from . import file_sync, world

#: The store's counter of failed ranks; the launcher counts the ranks that ended without a word (`launcher`).
FAILED = "failed"
#: What a shell adds to the number of the signal that ended a process.
SIGNAL_BASE = 128

_PEER_GONE = re.compile(
    r"connection (closed|reset|refused|aborted)|broken pipe|socket timeout|remote process exited|pair closure|"
    r"writev|readv|recvvalue|failed to recv|nccl communicator was aborted|nccl remote error|ncclremoteerror",
    re.IGNORECASE,
)
_WAIT_FOR_CULPRIT = 3.0  # seconds
_EXIT_WITHIN = 30  # seconds

_failed = False
_exits = 0


def failed() -> bool:
    """Whether this rank is on its way out because of an error."""
    return _failed


def exit_now(code: int) -> NoReturn:
    """Do what was registered for the exit (`atexit`), and end this process."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def install() -> None:
    """Make this rank's `sys.excepthook` and `sys.exit` show an error once, over all ranks."""
    show, leave = sys.excepthook, sys.exit

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _failed
        _failed = True
        interrupted = issubclass(kind, KeyboardInterrupt)
        if world.is_main() if interrupted else _is_first(error):
            if not interrupted:
                sys.stderr.write(f"dp2ddp: rank {world.rank()} of {world.world_size()} failed:\n")
            show(kind, error, trace)
        # The interpreter isn't taken down: threads in a collective that never ends would hang or abort that.
        if hasattr(signal, "alarm"):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_EXIT_WITHIN)
        exit_now(SIGNAL_BASE + signal.SIGINT if interrupted else 1)

    def exit_once(code: int | str | None = None, /) -> NoReturn:
        global _failed
        _failed = _failed or code not in (None, 0)
        leave(1 if isinstance(code, str) and not _first_exit() else code)

    sys.excepthook = hook
    sys.exit = exit_once


def _is_first(error: BaseException) -> bool:
    """Whether this rank is the one to show its error: no other failed before it, nor is to blame for it."""
    store = file_sync.store()
    if store is None:
        return True
    blames_peer = _blames_peer(error)
    try:
        if blames_peer:
            with suppress(file_sync.PeerError):  # nobody comes forward
                file_sync.wait_until(lambda: store.add(FAILED, 0) > 0, _WAIT_FOR_CULPRIT, "the rank to blame")
                return False
        return int(store.add(FAILED, 1)) == 1
    except RuntimeError:  # the store's host is gone; an error of its own must still be seen
        return not blames_peer


def _blames_peer(error: BaseException | None) -> bool:
    """Whether `error`, or what led to it, is what a rank sees when another one has died."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        is_network = isinstance(error, (RuntimeError, OSError)) and _PEER_GONE.search(str(error))
        if is_network or isinstance(error, file_sync.PeerError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _first_exit() -> bool:
    """Whether this rank is the first one at this `sys.exit("message")`; the others needn't say it again."""
    global _exits
    _exits += 1
    store = file_sync.store()
    try:
        return store is None or store.add(f"exit{_exits}", 1) == 1
    except RuntimeError:
        return True
