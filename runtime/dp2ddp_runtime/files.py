"""Python's functions that change the disk, or ask what is there: rank 0 alone changes it.

On rank 0 they do what they do. On the others what changes something changes nothing, and comes to the same: the same
result, the same error. What asks is answered as rank 0's disk was at this line (`disk`).

A rank's own is really done: what `tempfile` has named, what the system and libraries' caches have, and what samples and
loaders' workers do (`whose`). Libraries in Python come here, whatever they are. What writes from C++
doesn't: that is for `main_only`.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import itertools
import os
import shutil
import stat as stats
import sys
import tempfile
import threading
from typing import Any, Callable

import torch
from torch.utils.data import get_worker_info

from . import checkpoint, programs, sinks
from .acting import mode as acting_as
from .disk import Found, changing, disk
from .imported import replace
from .whose import is_by_tempfile, mode_of, ours, resolved, take_as_own
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
    first, found = _asked(path, real)
    if found.is_absent or (found.how == "was" and found.value[follows] is None):
        raise _absent(path)
    if found.how == "was":
        return os.stat_result(*found.value[follows])
    if found.how == "passed":
        try:
            return real()
        except FileNotFoundError:  # rank 0 has removed it since, or hasn't come here, where the ranks differ
            if found.value == "tree":
                raise
            mode = (stats.S_IFDIR | 0o755) if found.value == "dir" else (stats.S_IFREG | 0o644)
            return os.stat_result((mode, 0, 0, 1, os.getuid(), os.getgid(), 0, 0, 0, 0))
    if isinstance(first, Exception):
        raise first
    return first  # type: ignore[no-any-return]


def _asked(path: str, real: Callable[[], Any]) -> tuple[Any, Found]:
    """What the disk gives, or its error, and what is known: in this order, as rank 0 tells ahead of what it does."""
    disk.looks(path)
    if not world.rank or mode_of():
        return real(), Found("disk")
    try:
        first: Any = real()
    except (OSError, ValueError) as error:
        first = error
    return first, disk.look(path)


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


class Entry:
    """What of an `os.DirEntry` is asked for, of what was there for this rank and isn't on the disk any more."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self.path = name, path
        self.is_dir = lambda **_: os.path.isdir(path)
        self.is_file = lambda **_: os.path.isfile(path)
        self.is_symlink = lambda: os.path.islink(path)
        self.stat = functools.partial(os.stat, path)

    def __fspath__(self) -> str:
        return self.path


class Entries(itertools.chain[Any]):
    """What `os.scandir` gives, of a list."""

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *error: object) -> None: ...

    close = __exit__


@functools.wraps(os.scandir)
def _scandir(path: Any = None) -> Any:
    whole = ours("." if path is None else path)
    if whole is None or not world.rank or mode_of() or isinstance(path, bytes):
        return _real_scandir(path)
    given = "." if path is None else os.fspath(path)
    if disk.look(whole).is_absent:
        raise _absent(given)
    inside = os.path.dirname(resolved(os.path.join(whole, "entry")))  # where a link leads
    before, _ = disk.listing(inside)  # waits for what this rank has passed
    names: dict[str, Any] = {}
    try:
        with _real_scandir(given) as found:
            names.update((each.name, each) for each in found)
    except FileNotFoundError:
        if not before and _kind(whole) != "dir":
            raise
    there, gone = disk.listing(inside)  # rank 0 tells ahead of what it does: so this comes last
    left = [Entry(name, os.path.join(given, name)) for name in sorted(there - names.keys())]
    return Entries([*(each for name, each in names.items() if name not in gone), *left])


@functools.wraps(os.listdir)
def _listdir(path: Any = None) -> list[Any]:
    if not world.rank or mode_of() or ours("." if path is None else path) is None:
        return _real_listdir(path)
    with _scandir(path and os.fsdecode(path)) as found:
        names = [each.name for each in found]
    return [*map(os.fsencode, names)] if isinstance(path, bytes) else names


# ---- files ---------------------------------------------------------------------------------------------------------


@functools.wraps(builtins.open)
def _opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    if getattr(kwargs.get("opener"), "__module__", "") == "pathlib":  # before Python 3.10
        del kwargs["opener"]
    by_opener = kwargs.get("opener") is not None or len(args) > 5  # whose `os.open` is replaced, too
    whole = None if by_opener or not isinstance(mode, str) else ours(file)
    if whole is None:
        is_of_sample = acting_as.get() == "sample" or get_worker_info() is not None
        is_shared = is_of_sample and "w" in str(mode) and not by_opener and not isinstance(file, int)
        return (sinks.whole if is_shared else _real_open)(file, mode, *args, **kwargs)
    if not set(mode) & set("wax+"):
        return _for_reading(whole, file, lambda path: _real_open(path, mode, *args, **kwargs))
    if mode_of() == "mute":
        return sinks.nowhere(0, file, mode, *args, **kwargs)
    with changing({whole: "file"}):
        if world.rank:
            _check(whole, file, new="x" in mode, there="r" in mode, is_file=True)
            size = _size(whole) if "r" in mode or "a" in mode else 0
            made = sinks.nowhere(size, file, mode, *args, **kwargs)
        else:
            made = _real_open(file, mode, *args, **kwargs)
    disk.opens(whole)
    sinks.on_close(made, functools.partial(disk.closes, whole))
    return made


def _size(path: str) -> int:
    """Of the file that another rank appends to, at this line: rank 0 may have written more by now, or less."""
    size = _real_stat(path).st_size if _real_access(path, 0) else 0  # first: rank 0 tells ahead of what it does
    found = disk.look(path, waits=threading.current_thread() is threading.main_thread())
    if found.how == "was":
        return os.stat_result(*found.value[1]).st_size if found.value and found.value[1] else 0
    if found.how == "passed" and found.value:
        kept = disk.path_of_content(path, 1)  # nowhere, if this process is in its name
        return _real_stat(kept).st_size if _real_access(kept, 0) else 0
    return 0 if found.is_absent else size


_opened.__module__, _opened.__qualname__ = "builtins", "open"


def _for_reading(whole: str, path: Any, real: Callable[[Any], Any]) -> Any:
    first, found = _asked(whole, lambda: real(path))
    if not world.rank or mode_of():
        return first
    if not isinstance(first, Exception):
        if not found.is_absent and found.how != "passed" and world.groups is not None:
            return first
        os.close(first) if isinstance(first, int) else first.close()
    if found.is_absent:
        raise _absent(path)
    version = disk.path_of_content(whole)
    return real(path if version == whole else version)


def _check(path: str, given: Any, new: bool = False, there: bool = False, is_file: bool = False) -> None:
    """Raise what rank 0's disk does. With `new` nothing must be at the path, with `there` something."""
    kind = _kind(path)
    if kind is not None and new:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), given)
    if kind == "dir" and is_file:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), given)
    folder = os.path.dirname(path)
    if kind is None and (there or (_kind(folder) is None and folder not in disk.made)):
        raise _absent(given)


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
    with changing({whole: "file"}):
        if world.rank:
            _check(whole, path, bool(flags & os.O_EXCL), not flags & os.O_CREAT, is_file=True)
            keeps = not flags & os.O_TRUNC
            if keeps:
                disk.look(whole)
            made = sinks.named_descriptor(whole, keeps)
        else:
            made = _real_os_open(path, flags, mode, dir_fd=dir_fd)
    disk.opens(whole, raw=True)
    return made


# ---- changes -------------------------------------------------------------------------------------------------------


#: What functions make of the paths that they are given (`changing`); "read" is only read, "new" must not be there.
_CHANGES: dict[str, tuple[str | None, ...]] = {
    "os.mkdir": ("dir",),
    "os.remove": (None,),
    "os.unlink": (None,),
    "os.rmdir": (None,),
    "os.rename": (None, "tree"),
    "os.replace": (None, "tree"),
    "os.symlink": ("text", "new"),
    "os.link": ("read", "new"),
    "os.truncate": ("file",),
    "os.utime": ("same",),
    "os.chmod": ("same",),
    "shutil.rmtree": (None,),
    "shutil.copystat": ("read", "same"),  # with what os has no function for, such as SELinux's
    "shutil.copyfile": ("read", "file"),
}


def _changing(name: str, real: Any) -> Any:
    """What stands in the place of a function that changes the disk."""
    kinds = _CHANGES[name]
    names = ("src", "dst") if len(kinds) > 1 else ("path",)

    @functools.wraps(real)
    def function(*args: Any, **kwargs: Any) -> Any:
        if name == "os.mkdir" and args and is_by_tempfile(sys._getframe(1)):
            take_as_own(args[0])
        given = [args[n] if n < len(args) else kwargs.get(key) for n, key in enumerate(names)]
        paths = [ours(path, kwargs.get("dir_fd", kwargs.get(f"{key}_dir_fd"))) for path, key in zip(given, names)]
        about = [(kind, path, asked) for kind, path, asked in zip(kinds, paths, given) if path and kind != "text"]
        changes = {path: "tree" if kind == "new" else kind for kind, path, _ in about if kind != "read"}
        if not changes:
            return real(*args, **kwargs)
        result = given[-1] if name == "shutil.copyfile" else None
        if mode_of() == "mute":
            return result
        leads: Any = given[0] if name == "os.symlink" else None
        if name in ("os.rename", "os.replace") and paths[0] and world.rank:
            leads = disk.link(paths[0])
        is_lenient = name == "shutil.rmtree" and (kwargs.get("ignore_errors") or True in args[1:2])
        with changing(changes):
            if not world.rank:
                return real(*args, **kwargs)
            for kind, path, asked in about if not is_lenient else ():
                _check(path, asked, kind in ("dir", "new"), kind in (None, "same", "read"), name == "shutil.copyfile")
            for path in changes:
                disk.links.pop(path, None)
            if name in ("os.rename", "os.replace"):
                _move_own(*given, *paths)
            if leads is not None and paths[1]:
                disk.links[paths[1]] = os.fsdecode(leads)
        return result

    return function


def _move_own(src: Any, dst: Any, from_ours: str | None, to_ours: str | None) -> None:
    """On another rank: what is moved between the script's files and its own."""
    if not from_ours and os.path.lexists(src):
        shutil.rmtree(src) if os.path.isdir(src) else os.remove(src)
    elif from_ours and not to_ours:
        disk.look(from_ours)
        shutil.copyfile(src, dst)


# ---- installing ----------------------------------------------------------------------------------------------------


def _sanitized(real: Any) -> Any:
    """What `tempfile` makes of its arguments: no rank has files of its own in a folder that rank 0 may list."""

    @functools.wraps(real)
    def sanitized(prefix: Any, suffix: Any, dir: Any) -> Any:
        if dir is not None and world.rank and ours(dir) is not None:
            dir = tempfile.gettempdirb() if isinstance(os.fspath(dir), bytes) else tempfile.gettempdir()
        return real(prefix, suffix, dir)

    return sanitized


def _patches() -> list[tuple[Any, str, Any, str]]:
    """Where, which, by what, and why."""
    private: Any = tempfile
    jit: Any = torch.jit
    scripted = jit.RecursiveScriptModule
    modules = {"os": os, "shutil": shutil}
    changes = [(modules[n.split(".")[0]], n.split(".")[1], n) for n in _CHANGES]
    asked = (_stat, _lstat, _access, _listdir, _scandir, _chdir)
    return [
        (builtins, "open", _opened, "rank 0's file is written once; a read waits for a write that it has passed"),
        (io, "open", _opened, "the same, for pathlib and others"),
        (os, "open", _open_descriptor, "the same, for descriptors"),
        *((os, each.__name__, each, "what is there is what was there for rank 0 at this line") for each in asked),
        *((m, name, _changing(full, getattr(m, name)), "rank 0 changes files, once") for m, name, full in changes),
        (torch, "save", checkpoint.saving(torch.save), "it writes from C++"),
        (scripted, "save", checkpoint.saving(scripted.save), "the same, for scripted modules"),
        (torch, "load", checkpoint.loading(torch.load), "a whole `nn.DataParallel` comes back wrapped"),
        *programs.patches(),
        (private, "_sanitize_params", _sanitized(private._sanitize_params), "own files are in no shared folder"),
    ]


def install() -> None:
    """From now on rank 0 is in charge of the disk. Also under names that modules have imported already."""
    if REPLACED:
        return
    disk.is_used = True
    tempfile.gettempdir()  # which looks for it the first time
    stand_ins = _patches()
    for owner, name, _, reason in stand_ins:
        of = f"{owner.__module__}." if isinstance(owner, type) else ""
        REPLACED[f"{of}{owner.__name__}.{name}"] = reason
    replace([(owner, name, stand_in) for owner, name, stand_in, _ in stand_ins], installed=True)
