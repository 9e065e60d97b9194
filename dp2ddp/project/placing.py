"""Puts several files in their places: all of them, or none.

Everything is prepared under other names first, on the same file system, so that what is left is to rename. Where that
fails half-way, what was there before is put back.
"""

from __future__ import annotations

import contextlib
import os
import stat
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
    """An empty folder in which to prepare what `settle` moves to the folder `target`; gone in the end.

    Raises:
        BadInput: nothing can be written there.
    """
    import tempfile

    place = target if target.is_dir() else target.parent
    try:
        scratch = tempfile.TemporaryDirectory(dir=place, prefix=f".{target.name[:_LONGEST]}.")
    except OSError as error:
        raise BadInput(str(target), what=f"can't be written ({error.strerror})") from None
    with scratch as folder:
        yield Path(folder)


def copy(tree: Tree, contents: Mapping[str, bytes], extra: Sequence[str], staged: Path) -> None:
    """Copies a folder to `staged`: files, links, folders, with their modes.

    Args:
        tree: what to copy.
        contents: the bytes of the files that get new ones, by path.
        extra: files to copy that the tree left out.

    Raises:
        BadInput: a file can't be read.
    """
    import shutil

    for folder in tree.folders:
        (staged / folder).mkdir()
    for path in [*tree.files, *extra]:
        target = staged / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(tree.root / path, target)
        except OSError as error:
            raise BadInput(path, what=f"can't be copied ({error.strerror})") from None
    write({staged / path: data for path, data in contents.items()})
    for link in tree.links:
        os.symlink(os.readlink(tree.root / link), staged / link)


def settle(staged: Path, target: Path, modes_of: Path | None = None) -> None:
    """Moves all that is in `staged` to the folder `target`, which is made where it isn't there.

    Files of the same names are replaced, others stay.

    Args:
        modes_of: the folder whose modes the new folders get, where they have counterparts there.

    Raises:
        BadInput: something can't be written; then all is as it was.
    """
    made: list[Path] = []
    inside = sorted(path.relative_to(staged) for path in staged.rglob("*"))
    folders = {path for path in inside if (staged / path).is_dir() and not (staged / path).is_symlink()}
    try:
        with contextlib.ExitStack() as undo:
            for place in (target / path for path in (Path(), *inside) if path in {Path(), *folders}):
                if not place.is_dir():
                    place.mkdir()
                    undo.callback(place.rmdir)
                    made.append(place)
            replace_all([(staged / path, target / path) for path in inside if path not in folders])
            undo.pop_all()
    except OSError as error:
        raise _unwritable(target, error) from None
    for folder in reversed(made):
        counterpart = None if modes_of is None else modes_of / folder.relative_to(target)
        if counterpart is not None and counterpart.is_dir():
            os.chmod(folder, stat.S_IMODE(counterpart.stat().st_mode))


def write(contents: Mapping[Path, bytes], *, mode_of: Path | None = None) -> None:
    """Writes files, all of them or none; nobody ever sees half a file.

    A symbolic link stays, and the file behind it is written. A file that is there keeps its mode; a new one gets that
    of `mode_of`. Devices and pipes, such as ``/dev/null``, are written to as they are.

    Raises:
        BadInput: something can't be written; then all is as it was.
    """
    prepared: list[tuple[Path, Path]] = []
    path = Path()
    try:
        for path, data in contents.items():
            target = Path(os.path.realpath(path))
            if is_special(target):
                target.write_bytes(data)
                continue
            fresh = _beside(target)
            prepared.append((fresh, target))
            with open(fresh, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            like = target if mode_of is None or target.exists() else mode_of
            if like.exists():
                os.chmod(fresh, stat.S_IMODE(like.stat().st_mode))
        replace_all(prepared)
    except OSError as error:
        named = path if len(contents) == 1 else Path(error.filename2 or error.filename or path)
        raise _unwritable(named, error) from None
    finally:
        for fresh, _ in prepared:
            with contextlib.suppress(FileNotFoundError):
                fresh.unlink()


def replace_all(moves: Sequence[tuple[Path, Path]]) -> None:
    """Renames each first path to the second one, where a file may be already.

    Raises:
        OSError: one can't be renamed; then the files that were there are there again.
        BadInput: not even that could be done; it says where they are.
    """
    done: list[tuple[Path, Path | None]] = []
    try:
        for prepared, target in moves:
            kept = _kept(target)
            try:
                os.replace(prepared, target)
            except OSError:
                _drop(kept)
                raise
            done.append((target, kept))
    except BaseException:
        _put_back(done)
        raise
    for _, kept in done:
        _drop(kept)


def _put_back(done: Sequence[tuple[Path, Path | None]]) -> None:
    lost: list[tuple[Path, Path]] = []
    for target, kept in reversed(done):
        if kept is None:
            target.unlink()
            continue
        try:
            os.replace(kept, target)
        except OSError:
            lost.append((target, kept))
            continue
        # Still there where both names were one file, and nothing was to be done.
        _drop(kept)
    if lost:
        places = ", ".join(str(kept) for _, kept in lost)
        raise BadInput(str(lost[0][0]), what="can't be put back after a failure", todo=f"what was there is in {places}")


def _drop(kept: Path | None) -> None:
    if kept is not None:
        kept.unlink(missing_ok=True)


def _kept(target: Path) -> Path | None:
    """Another name for the file at `target`, None where there is none. A folder there is an error."""
    if not os.path.lexists(target):
        return None
    kept = _beside(target)
    try:
        os.link(target, kept, follow_symlinks=False)
    except (OSError, NotImplementedError):  # file systems without hard links
        import shutil

        shutil.copy2(target, kept, follow_symlinks=False)
    return kept


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name[:_LONGEST]}.{os.urandom(4).hex()}")


def _unwritable(path: Path, error: OSError) -> BadInput:
    return BadInput(str(path), what=f"can't be written ({error.strerror})", todo="nothing was changed")
