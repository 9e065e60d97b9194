"""That nothing stays of a comparison: its processes end, and its folder goes."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "dp2ddp-verify-"
_ATTEMPTS = 9  # what was just killed may have been writing a file

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_SOON = 0.05  # seconds


def end_with(parent: int) -> None:
    """From now on this process is killed when its parent, the process `parent`, ends (on Linux); at once if it has."""
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


@contextmanager
def folder() -> Iterator[Path]:
    """A private folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it; links are never followed."""
    for _ in range(_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
