"""Puts files in their places, each of them whole.

All of them are written under other names first, on the same file system, so that what is left is to rename: a full disk
changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dp2ddp.errors import BadInput
from dp2ddp.project.text_files import is_special

if TYPE_CHECKING:
    from dp2ddp.project.tree import Tree

#: How many characters of a file's name the name of its temporary file begins with; names may not be too long.
_LONGEST = 40


@contextlib.contextmanager
def staging(target: Path) -> Iterator[Path]:
    """An empty folder in which to prepare what then moves to the folder `target`; files of other names stay there.

    Raises:
        BadInput: something can't be written; it says so if files have moved already.
    """
    place = target if target.is_dir() else target.parent
    moved: list[Path] = []
    try:
        with tempfile.TemporaryDirectory(dir=place, prefix=f".{target.name[:_LONGEST]}.") as scratch:
            staged = Path(scratch, "new")
            staged.mkdir()
            yield staged
            if not target.is_dir():
                os.rename(staged, target)
                return
            for path in sorted(staged.rglob("*")):
                there = target / path.relative_to(staged)
                if path.is_dir() and not path.is_symlink():
                    there.mkdir(exist_ok=True)
                else:
                    os.replace(path, there)
                    moved.append(there)
    except OSError as error:
        raise _unwritable(target, error, moved) from None


def copy(tree: Tree, contents: Mapping[str, bytes], extra: Sequence[str], staged: Path) -> None:
    """Copies a folder to `staged`: files with their modes, links, folders.

    Args:
        tree: what to copy.
        contents: the bytes of the files that get new ones, by path.
        extra: files to copy that the tree left out.

    Raises:
        BadInput: a file can't be copied.
    """
    for folder in tree.folders:
        (staged / folder).mkdir()
    for path in [*tree.files, *extra]:
        target = staged / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            if path in contents:
                target.write_bytes(contents[path])
                shutil.copymode(tree.root / path, target)
            else:
                shutil.copy2(tree.root / path, target)
        except OSError as error:
            raise BadInput(path, what=f"can't be copied ({error.strerror})") from None
    for link in tree.links:
        os.symlink(os.readlink(tree.root / link), staged / link)


def write(contents: Mapping[Path, bytes], *, mode_of: Path | None = None) -> None:
    """Writes files; nobody ever sees half a file, and where one can't be written, none is.

    A symbolic link stays, and the file behind it is written. A file that is there keeps its mode; a new one gets that
    of `mode_of`. Devices and pipes, such as ``/dev/null``, are written to as they are.

    Raises:
        BadInput: something can't be written; it says so if others of the files have been by then.
    """
    prepared: list[tuple[Path, Path]] = []
    moved: list[Path] = []
    path = Path()
    try:
        for path, data in contents.items():
            target = Path(os.path.realpath(path))
            if is_special(target):
                target.write_bytes(data)
                continue
            fresh = target.with_name(f".{target.name[:_LONGEST]}.{os.urandom(4).hex()}")
            prepared.append((fresh, target))
            with open(fresh, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            like = target if mode_of is None or target.exists() else mode_of
            if like.exists():
                os.chmod(fresh, stat.S_IMODE(like.stat().st_mode))
        for fresh, path in prepared:
            os.replace(fresh, path)
            moved.append(path)
    except OSError as error:
        raise _unwritable(path, error, moved) from None
    finally:
        for fresh, _ in prepared:
            fresh.unlink(missing_ok=True)


def _unwritable(path: Path, error: OSError, moved: Sequence[Path]) -> BadInput:
    todo = f"written before: {', '.join(map(str, moved))}" if moved else "nothing was changed"
    return BadInput(str(path), what=f"can't be written ({error.strerror})", todo=todo)
