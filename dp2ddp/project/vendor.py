"""Copies the runtime beside a converted script, so that the script needs nothing installed but torch."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dp2ddp import RUNTIME_PACKAGE, RUNTIME_SOURCE
from dp2ddp.errors import BadInput

_NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.pyc")


def check(folder: Path, *, force: bool) -> None:
    """Checks that the runtime may be copied into `folder`.

    Raises:
        BadInput: something else has the runtime's name there, and no `force`.
    """
    target = folder / RUNTIME_PACKAGE
    if os.path.lexists(target) and not force and not _is_current(target):
        raise BadInput(
            str(target), what="exists already, and is not this version of the runtime", todo="use --force to replace it"
        )


def copy(folder: Path) -> Path:
    """Copies the runtime into `folder`, replacing another copy as a whole; does nothing if it is there as it is.

    Returns:
        Where it lies now.

    Raises:
        BadInput: it can't be written.
    """
    target = folder / RUNTIME_PACKAGE
    if _is_current(target):
        return target
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{RUNTIME_PACKAGE}.") as scratch:
            fresh = Path(scratch, "fresh")
            shutil.copytree(RUNTIME_SOURCE, fresh, ignore=_NOT_COPIED)
            if os.path.lexists(target):
                os.rename(target, Path(scratch, "old"))
            os.rename(fresh, target)
    except OSError as error:
        raise BadInput(str(target), what=f"can't be written ({error.strerror})") from None
    return target


def copy_all(folders: Iterable[Path]) -> None:
    """Copies the runtime into each folder. Raises as `copy`."""
    for folder in folders:
        copy(folder)


@contextlib.contextmanager
def copied(folders: Sequence[Path]) -> Iterator[None]:
    """Copies the runtime into each folder, and takes copies that are new away again if the block fails."""
    new = [folder / RUNTIME_PACKAGE for folder in folders if not os.path.lexists(folder / RUNTIME_PACKAGE)]
    try:
        copy_all(folders)
        yield
    except BaseException:
        for target in new:
            if target.is_dir():
                shutil.rmtree(target)
        raise


def _is_current(target: Path) -> bool:
    return target.is_dir() and (target.samefile(RUNTIME_SOURCE) or _contents(target) == _contents(RUNTIME_SOURCE))


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
