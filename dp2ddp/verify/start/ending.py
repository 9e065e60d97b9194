"""Run something to the end of a forked process, and end that as the interpreter ends: but not piece by piece.

Taking apart all that was imported takes seconds, more than a short script runs. What the script leaves open is closed
(a file that it never closes has to be written), and what it registered is called; the rest goes with the process.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import NoReturn

_NOT_FLUSHED = 120  # the interpreter's exit code where standard output can't be flushed


def run_to_the_end(main: Callable[[], None]) -> NoReturn:
    """Call `main`, and exit as a script does that ends like this: with its code, or with a traceback."""
    shared = dict(sys.modules)
    code = _code(main)
    threading._shutdown()  # type: ignore[attr-defined]  # threads that aren't daemons end first, pools of them, too
    atexit._run_exitfuncs()
    _release(shared)
    # A script may have put its own in their place, which write to those from the start and never flush them.
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except Exception:  # noqa: BLE001 - whatever the script's own raises
            code = _NOT_FLUSHED
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _code(main: Callable[[], None]) -> int:
    """The exit code after `main`; -n: signal n is to end this process."""
    try:
        main()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _release(shared: Mapping[str, object]) -> None:
    """Let go of what modules hold that are not `shared`, so that what ends with that (files, workers) does."""
    threading.excepthook = lambda told: None  # of daemons, which the interpreter would have stopped by now
    for module in [module for name, module in sys.modules.items() if shared.get(name) is not module]:
        vars(module).clear()
    gc.collect()
