"""Rank 0 alone changes the disk. Python's own functions for that lead here, and those that ask what is there.

On rank 0 they do what they do. On the others what changes something changes nothing, and comes to the same: the same
result, the same error. What asks is answered as rank 0's disk was at this line (`disk`).

A rank's own is really done: what `tempfile` has named, what the system and libraries' caches have, and what samples and
loaders' workers do (`whose`). Libraries in Python come through these doors, whatever they are. What writes from C++
doesn't: that is for `main_only`.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import pathlib
import shutil
import stat as stats
import sys
import tempfile
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Callable, NamedTuple

import torch
from torch.utils.data import get_worker_info

from . import checkpoint, programs, sinks
from .acting import acting
from .acting import mode as acting_as
from .checkpoint import load as load
from .checkpoint import save as save
from .disk import Found, disk
from .main_only import broadcast as broadcast
from .main_only import main_first as main_first
from .main_only import main_only as main_only
from .main_only import own_files as own_files
from .place import HERE
from .told import kept
from .whose import is_by_tempfile, mode_of, ours, take_as_own
from .world import world

#: What is replaced, and why; `docs/architecture.md` has the table.
REPLACED: dict[str, str] = {}

_real_open, _real_os_open, _real_stat, _real_lstat = builtins.open, os.open, os.stat, os.lstat
_real_listdir, _real_scandir, _real_access, _real_chdir = os.listdir, os.scandir, os.access, os.chdir


# ---- what is there -------------------------------------------------------------------------------------------------


def _absent(path: Any) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _kind(path: str) -> str | None:
    """What is at a path, as far as that decides whether it can be changed: "file", "dir", or None. Doesn't wait."""
    try:
        mode: int | None = _real_lstat(path).st_mode
    except (OSError, ValueError):
        mode = None
    found = disk.look(path, waits=False)
    if found.how == "passed" and found.value != "tree":
        return found.value  # type: ignore[no-any-return]
    if found.how == "was":
        mode = found.value and found.value[0][0][0]
    if mode is None:
        return "file" if found.how == "passed" else None
    return "dir" if stats.S_ISDIR(mode) else "file"


@functools.wraps(os.stat)
def _stat(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
    real = functools.partial(_real_stat, path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
    whole = ours(path, dir_fd)
    return real() if whole is None else _stat_of(whole, real, follow_symlinks)


@functools.wraps(os.lstat)
def _lstat(path: Any, *, dir_fd: int | None = None) -> os.stat_result:
    if is_by_tempfile(sys._getframe(1)):  # which looks whether a name is free
        take_as_own(path)
    real = functools.partial(_real_lstat, path, dir_fd=dir_fd)
    whole = ours(path, dir_fd)
    return real() if whole is None else _stat_of(whole, real, False)


def _stat_of(path: str, real: Callable[[], os.stat_result], follows: bool) -> os.stat_result:
    disk.looks(path)
    if not world.rank or mode_of():
        return real()
    first: Any = None
    try:
        first = real()
    except (OSError, ValueError) as error:
        first = error
    found = disk.look(path)
    if found.is_absent or (found.how == "was" and found.value[follows] is None):
        raise _absent(path)
    if found.how == "was":
        return os.stat_result(*found.value[follows])
    if found.how == "passed":
        return _made(path, real, found)
    if isinstance(first, Exception):
        raise first
    return first  # type: ignore[no-any-return]


def _made(path: str, real: Callable[[], os.stat_result], found: Found) -> os.stat_result:
    """Of what this rank has passed; rank 0 may not have come to it, where the ranks differ in what they do."""
    try:
        return real()
    except FileNotFoundError:
        if found.value == "tree":
            raise
        mode = (stats.S_IFDIR | 0o755) if found.value == "dir" else (stats.S_IFREG | 0o644)
        return os.stat_result((mode, 0, 0, 1, os.getuid(), os.getgid(), 0, 0, 0, 0))


@functools.wraps(os.access)
def _access(path: Any, mode: int, **kwargs: Any) -> bool:
    whole = ours(path, kwargs.get("dir_fd"))
    if whole is not None and world.rank and not mode_of() and disk.look(whole).is_absent:
        return False
    return _real_access(path, mode, **kwargs)


@functools.wraps(os.chdir)
def _chdir(path: Any) -> None:
    whole = ours(path) if world.rank and not mode_of() else None
    if whole is not None:
        disk.look(whole)  # which waits until rank 0 has made it
    try:
        _real_chdir(path)
    except FileNotFoundError:
        if whole is None or world.groups is not None:
            raise
        # Rank 0's clock has named it, or its process number: at the wrap all go where rank 0 is.


@functools.wraps(os.listdir)
def _listdir(path: Any = None) -> list[Any]:
    whole = ours("." if path is None else path)
    if whole is None or not world.rank or mode_of():
        return _real_listdir(path)
    names: Any = _names(whole, lambda: dict.fromkeys(_real_listdir(whole)))
    return [*map(os.fsencode, names)] if isinstance(path, bytes) else [*names]


def _names(path: str, real: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `real` has, without what isn't there yet, and with what is there for this rank."""
    if disk.look(path).is_absent:
        raise _absent(path)
    before = disk.listing(path)  # waits for what this rank has passed
    try:
        names = real()
    except FileNotFoundError:
        if not before[0] and _kind(path) != "dir":
            raise
        names = {}
    there, gone = disk.listing(path)  # rank 0 tells ahead of what it does: so this comes last
    for name in gone:
        names.pop(name, None)
    for name in sorted(there - names.keys()):
        names[name] = None
    return names


class Entry:
    """An `os.DirEntry` of what is there for this rank and not on the disk."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isdir(self.path)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return os.path.isfile(self.path)

    def is_symlink(self) -> bool:
        return os.path.islink(self.path)

    def is_junction(self) -> bool:
        return False

    def inode(self) -> int:
        return self.stat().st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path, follow_symlinks=follow_symlinks)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class Entries:
    """What `os.scandir` gives, of a list."""

    def __init__(self, entries: list[Any]) -> None:
        self._left = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._left)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._left = iter(())


@functools.wraps(os.scandir)
def _scandir(path: Any = None) -> Any:
    whole = ours("." if path is None else path)
    if whole is None or not world.rank or mode_of() or isinstance(path, bytes):
        return _real_scandir(path)
    given = "." if path is None else os.fspath(path)

    def real() -> dict[str, Any]:
        with _real_scandir(given) as found:
            return {each.name: each for each in found}

    names = _names(whole, real)
    return Entries([each or Entry(name, os.path.join(given, name)) for name, each in names.items()])


# ---- files ---------------------------------------------------------------------------------------------------------


@functools.wraps(builtins.open)
def _opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    by_opener = kwargs.get("opener") is not None or len(args) > 5  # whose `os.open` comes through its own door
    whole = None if by_opener or not isinstance(mode, str) else ours(file)
    if whole is None:
        is_of_sample = acting_as.get() == "sample" or get_worker_info() is not None
        is_shared = is_of_sample and "w" in str(mode) and not by_opener and not isinstance(file, int)
        return (sinks.whole if is_shared else _real_open)(file, mode, *args, **kwargs)
    if not set(mode) & set("wax+"):
        return _for_reading(whole, file, lambda path: _real_open(path, mode, *args, **kwargs))
    if mode_of() == "mute":
        return sinks.nowhere(file, mode, *args, **_without_opener(kwargs))
    disk.begins(whole, destroys=True, in_place=True)
    if world.rank:
        try:
            _check_writable(whole, file, new="x" in mode, there="r" in mode)
            if "r" in mode or "a" in mode:
                disk.look(whole)
            with acting("own"):
                made = sinks.nowhere(file, mode, *args, **_without_opener(kwargs))
        finally:
            disk.arrives(whole)
    else:
        made = _real_open(file, mode, *args, **kwargs)
    disk.opens(whole)
    sinks.on_close(made, functools.partial(disk.closes, whole))
    return made


_opened.__module__, _opened.__qualname__ = "builtins", "open"


def _without_opener(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in ("opener", "closefd")}


def _for_reading(whole: str, path: Any, real: Callable[[Any], Any]) -> Any:
    disk.looks(whole)
    if not world.rank or mode_of():
        return real(path)
    first: Any = None
    try:
        first = real(path)
    except OSError as error:
        first = error
    found = disk.look(whole)
    if isinstance(first, Exception) or found.is_absent or found.how == "passed" or world.groups is None:
        if not isinstance(first, Exception):
            os.close(first) if isinstance(first, int) else first.close()
        if found.is_absent:
            raise _absent(path)
        version = disk.version(whole)
        return real(path if version == whole else version)
    return first


def _check_writable(whole: str, path: Any, new: bool = False, there: bool = False) -> None:
    """Raise what rank 0's disk does. With `new` it must not be there, with `there` it must."""
    kind = _kind(whole)
    if kind is not None and new:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    if kind == "dir":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if kind is None and (there or _kind(os.path.dirname(whole)) is None):
        raise _absent(path)


@functools.wraps(os.open)
def _open_descriptor(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    is_nameless = hasattr(os, "O_TMPFILE") and flags & os.O_TMPFILE == os.O_TMPFILE
    if is_by_tempfile(sys._getframe(1)) and not is_nameless:
        take_as_own(path)
    whole = None if is_nameless else ours(path, dir_fd)
    if whole is None:
        return _real_os_open(path, flags, mode, dir_fd=dir_fd)
    if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return int(_for_reading(whole, path, lambda found: _real_os_open(found, flags, mode, dir_fd=dir_fd)))
    if mode_of() == "mute":
        return sinks.descriptor()
    disk.begins(whole, destroys=True, in_place=True)
    if world.rank:
        try:
            _check_writable(whole, path, bool(flags & os.O_EXCL), not flags & os.O_CREAT)
            keeps = not flags & os.O_TRUNC
            if keeps:
                disk.look(whole)
            with acting("own"):
                made = sinks.descriptor(path if keeps else None)
        finally:
            disk.arrives(whole)
    else:
        made = _real_os_open(path, flags, mode, dir_fd=dir_fd)
    disk.opens(whole, raw=True)
    return made


# ---- changes -------------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """What a function changes, by the places of its paths; -1 for none.

    Args:
        needs: what must be there, `new`: what must not.
        removes, makes: what it takes away, and what is there then, of which kind; `touches`: what stays what it is.
    """

    names: tuple[str, ...]
    needs: int = -1
    new: int = -1
    removes: int = -1
    makes: int = -1
    touches: int = -1
    kind: str = "file"


_PATH, _BOTH = ("path",), ("src", "dst")
_CHANGES: dict[str, Change] = {
    "os.mkdir": Change(_PATH, new=0, makes=0, kind="dir"),
    "os.remove": Change(_PATH, needs=0, removes=0),
    "os.unlink": Change(_PATH, needs=0, removes=0),
    "os.rmdir": Change(_PATH, needs=0, removes=0),
    "os.rename": Change(_BOTH, needs=0, removes=0, makes=1, kind="tree"),
    "os.replace": Change(_BOTH, needs=0, removes=0, makes=1, kind="tree"),
    "os.symlink": Change(_BOTH, new=1, makes=1, kind="tree"),
    "os.truncate": Change(_PATH, needs=0, makes=0),
    "os.utime": Change(_PATH, needs=0, touches=0),
    "os.chmod": Change(_PATH, needs=0, touches=0),
    "shutil.rmtree": Change(_PATH, needs=0, removes=0),
    "shutil.copyfile": Change(_BOTH, needs=0, makes=1),
    "shutil.copystat": Change(_BOTH, touches=1),
}
_FOLDERS = {("path",): ("dir_fd",), ("src", "dst"): ("src_dir_fd", "dst_dir_fd")}


def _changing(name: str, real: Any) -> Any:
    """What stands in the place of a function that changes the disk."""
    change = _CHANGES[name]

    @functools.wraps(real)
    def function(*args: Any, **kwargs: Any) -> Any:
        if name == "os.mkdir" and args and is_by_tempfile(sys._getframe(1)):
            take_as_own(args[0])
        given = [args[n] if n < len(args) else kwargs.get(key) for n, key in enumerate(change.names)]
        folders = [kwargs.get("dir_fd", kwargs.get(key)) for key in _FOLDERS[change.names]]
        paths = [ours(path, folder) for path, folder in zip(given, folders)]
        if name in ("os.symlink", "shutil.copyfile"):  # of these the other path is only read
            paths[0] = ours(given[0]) if paths[1] is not None and name != "os.symlink" else None
        if not any(paths):
            return real(*args, **kwargs)
        if mode_of() == "mute":
            return given[-1] if name == "shutil.copyfile" else None
        for place in (change.removes, change.makes, change.touches):
            if place >= 0 and paths[place]:
                disk.begins(str(paths[place]), place != change.touches, name == "os.truncate")
        if world.rank:
            try:
                _check(
                    change, paths, given, name == "shutil.rmtree" and (kwargs.get("ignore_errors") or True in args[1:2])
                )
                _keep_own(change, paths, given)
            finally:
                for place in {change.removes, change.makes} - {-1}:
                    disk.arrives(str(paths[place])) if paths[place] else None
            result = given[-1] if name == "shutil.copyfile" else None
        else:
            with acting("own"):
                result = real(*args, **kwargs)
        _note(change, paths)
        return result

    return function


def _check(change: Change, paths: list[str | None], given: list[Any], is_lenient: Any = False) -> None:
    """Raise what rank 0's disk does."""
    if is_lenient:
        return
    if change.needs >= 0 and paths[change.needs] and _kind(str(paths[change.needs])) is None:
        raise _absent(given[change.needs])
    if change.new >= 0 and paths[change.new] and _kind(str(paths[change.new])) is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), given[change.new])
    target = paths[change.makes] if change.makes >= 0 else None
    if target and _kind(os.path.dirname(target)) is None:
        raise _absent(given[change.makes])


def _keep_own(change: Change, paths: list[str | None], given: list[Any]) -> None:
    """On another rank: what is moved between the script's files and its own."""
    if change.removes < 0 or change.makes < 0:
        return
    with acting("own"):
        if not paths[0] and os.path.lexists(given[0]):
            shutil.rmtree(given[0]) if os.path.isdir(given[0]) else os.remove(given[0])
        elif paths[0] and not paths[1]:
            disk.look(paths[0])
            shutil.copyfile(given[0], given[1])


def _note(change: Change, paths: list[str | None]) -> None:
    if change.removes >= 0 and paths[change.removes]:
        disk.ends(str(paths[change.removes]), None)
    if change.makes >= 0 and paths[change.makes]:
        disk.ends(str(paths[change.makes]), change.kind)
    if change.touches >= 0 and paths[change.touches]:
        disk.changed(str(paths[change.touches]))


# ---- installing ----------------------------------------------------------------------------------------------------


def _sanitized(real: Any) -> Any:
    """What `tempfile` makes of its arguments: no rank has files of its own in a folder that rank 0 may list."""

    @functools.wraps(real)
    def sanitized(prefix: Any, suffix: Any, dir: Any) -> Any:
        if dir is not None and world.rank and ours(dir) is not None:
            dir = tempfile.gettempdirb() if isinstance(os.fspath(dir), bytes) else tempfile.gettempdir()
        return real(prefix, suffix, dir)

    return sanitized


def _doors() -> list[tuple[Any, str, Any, str]]:
    """Where, which, by what, and why."""
    private: Any = tempfile
    jit: Any = torch.jit
    scripted = jit.RecursiveScriptModule
    modules = {"os": os, "shutil": shutil}
    changes = [(modules[n.split(".")[0]], n.split(".")[1], n) for n in _CHANGES]
    early = [(sys.modules[m], n) for m, n in (("tarfile", "bltn_open"), ("bz2", "_builtin_open")) if m in sys.modules]
    asked = [("stat", _stat), ("lstat", _lstat), ("access", _access), ("listdir", _listdir), ("scandir", _scandir)]
    asked += [("chdir", _chdir)]
    return [
        (builtins, "open", _opened, "rank 0's file is written once; a read waits for a write that it has passed"),
        (io, "open", _opened, "the same, for pathlib and others"),
        *((module, name, _opened, "the same, under a name that Python keeps") for module, name in early),
        (os, "open", _open_descriptor, "the same, for descriptors"),
        *((os, name, door, "what is there is what was there for rank 0 at this line") for name, door in asked),
        *((m, name, _changing(full, getattr(m, name)), "rank 0 changes files, once") for m, name, full in changes),
        (torch, "save", checkpoint.saving(torch.save), "it writes from C++"),
        (scripted, "save", checkpoint.saving(scripted.save), "the same, for scripted modules"),
        (torch, "load", checkpoint.loading(torch.load), "a whole `nn.DataParallel` comes back wrapped"),
        *programs.doors(),
        (
            private,
            "_sanitize_params",
            _sanitized(private._sanitize_params),
            "a rank's own files are in no shared folder",
        ),
    ]


def install() -> None:
    """From now on rank 0 is in charge of the disk. Also under names that modules have imported already."""
    if REPLACED:
        return
    disk.is_used = True
    tempfile.gettempdir()  # which looks for it the first time
    stand_ins = _doors()
    made = {id(getattr(owner, name)): stand_in for owner, name, stand_in, _ in stand_ins}
    for owner, name, stand_in, reason in stand_ins:
        of = f"{owner.__module__}." if isinstance(owner, type) else ""
        REPLACED[f"{of}{owner.__name__}.{name}"] = reason
        setattr(owner, name, stand_in)
    for holder in [each for module in [*sys.modules.values()] if _is_python(module) for each in _holders(module)]:
        for name, value in list(holder.items()):
            if id(value) in made:
                holder[name] = made[id(value)]
    accessor = getattr(pathlib, "_NormalAccessor", None)  # before Python 3.11
    for name, value in list(vars(accessor).items()) if accessor else ():
        function = value.__func__ if isinstance(value, staticmethod) else value
        if id(function) in made:
            setattr(accessor, name, staticmethod(made[id(function)]))
    kept.at_birth.append(disk.hand_over)


def _holders(module: ModuleType) -> Iterator[dict[Any, Any]]:
    """Where a module holds functions: its names, small dicts of it and of its own objects (numpy's `{None: open}`)."""
    yield vars(module)
    for value in [*vars(module).values()]:
        is_own = type(value).__module__ == module.__name__ and hasattr(value, "__dict__")
        if is_own and not isinstance(value, type):
            yield vars(value)
        parts = [*vars(value).values()] if is_own else [value]
        yield from [part for part in parts if type(part) is dict and len(part) < 100]  # torch's large ones take long


_PYTHON = (os.path.dirname(os.__file__) + os.sep, *HERE, os.path.dirname(torch.__file__) + os.sep)
_INSTALLED = f"{os.sep}site-packages{os.sep}"


def _is_python(module: Any) -> bool:
    """Whether it is a module in Python, of the script or installed; none of Python's own, torch's or this runtime's."""
    file = str(getattr(module, "__file__", None) or "")
    if not isinstance(module, ModuleType) or not file or file.startswith(_PYTHON[1:]):
        return False
    return not file.startswith(_PYTHON[0]) or _INSTALLED in file
