"""A process and all that came of it: ending with its parent, ending its children and theirs."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_SOON = 0.05  # seconds


def end_with(parent: int) -> None:
    """From now on this process is killed when its parent, the process `parent`, ends (on Linux).

    Raises:
        SystemExit: it has ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("dp2ddp: the process that started this one has ended")


def adopt_orphans() -> None:
    """From now on descendants whose parents end become this process's children (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)


def end_group(pid: int) -> None:
    """Kill the process `pid` and the group that it leads, or is about to lead."""
    for kill in (os.kill, os.killpg):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def end_children() -> None:
    """Kill all of this process's children and, where it has adopted them, theirs; return when they are gone."""
    tasks = Path("/proc/self/task")
    while True:
        for task in tasks.glob("*/children"):
            for pid in task.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(_SOON)
        except ChildProcessError:
            return
