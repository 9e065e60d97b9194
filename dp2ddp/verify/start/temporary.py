"""The temporary folder of a comparison, and what comparisons left that were killed together with their keeper."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dp2ddp.errors import BadInput

PREFIX = "dp2ddp-verify-"
_LOCK = "in-use"
_ATTEMPTS = 9  # what was just killed may have been writing a file; a read-only folder takes one for each level
_LOOK_EVERY = 0.5  # seconds
_LEAST_ROOM = 2**18  # bytes
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "PytorchStreamWriter failed writing file")


@contextmanager
def folder() -> Iterator[Path]:
    """A private folder that is gone afterwards. Folders of this user's whose comparison has ended are removed first.

    Raises:
        BadInput: there is no folder for temporary files that can be written to.
    """
    remove_abandoned()
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    except OSError as error:
        todo = "set TMPDIR to a folder that can be written to"
        raise BadInput("verify", what=f"no temporary folder: {error.strerror or error}", todo=todo) from error
    try:
        with _locked(folder):
            yield folder
    finally:
        remove(folder)


class Room:
    """Sees to it that a full disk is told as that, whatever it makes of the runs.

    Raises:
        BadInput: by all that it does: the disk of `folder` is full.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = 0.0

    def look(self) -> None:
        """Look every so often."""
        if time.monotonic() > self._next:
            self._next = time.monotonic() + _LOOK_EVERY
            self.check()

    def check(self, said: str = "") -> None:
        """Look now. `said` is what a run that failed wrote to standard error."""
        free = shutil.disk_usage(self._folder).free
        if free < _LEAST_ROOM or any(words in said for words in _FULL):
            raise full(self._folder)


def full(folder: Path) -> BadInput:
    """What to say where there is no room left."""
    free = shutil.disk_usage(folder).free / 2**20
    what = f"no space left for what the scripts write ({free:.0f} MB free in {folder.parent})"
    return BadInput("verify", what=what, todo="set TMPDIR to a folder with more room")


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it, read-only folders included; links are never followed."""

    def allow(function: Any, path: str, error: Any) -> None:
        with suppress(OSError):
            os.chmod(os.path.dirname(path), stat.S_IRWXU)
            if not os.path.islink(path):
                os.chmod(path, stat.S_IRWXU)

    handler: dict[str, Any] = {"onexc": allow} if sys.version_info >= (3, 12) else {"onerror": allow}
    for _ in range(_ATTEMPTS):
        shutil.rmtree(folder, **handler)
        if not folder.exists():
            return


def remove_abandoned() -> None:
    """Remove what is left of comparisons that were killed so that nobody could clean up (the machine's power, too)."""
    if sys.platform == "win32":
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid() or _in_use(folder / _LOCK):
                continue
            remove(folder)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock in `folder`, which ends with this process, however it ends."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    # Locked before it has its name: who finds the file finds it locked.
    new = folder / f"{_LOCK}.new"
    with new.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        new.rename(folder / _LOCK)
        yield


def _in_use(lock: Path) -> bool:
    """Whether a process holds the lock. Raises `FileNotFoundError` where there is none (yet): nothing of ours."""
    import fcntl

    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
