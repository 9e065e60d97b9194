"""A rank other than 0 has eyes, but no hands: what Python's calls on the disk do there.

Rank 0's calls are done, and told to the others (`journal`). The same calls of other ranks change nothing and come to
the same: the same answers to questions, the same errors. So they all take the same way, however late one of them is.

- Questions (`os.stat`, on which `os.path.exists` stands, `os.listdir`, ...) are answered by rank 0's disk.
- A file is opened for reading when rank 0 has opened it, which is after all that it wrote before.
- What is written goes nowhere, and a rank goes on when rank 0 has closed the file.
- What removes, moves or overwrites waits until all ranks have come to it, as they may still read what is there.

Libraries in Python go through these doors, whatever they are. What writes from C++ doesn't: that is for `main_only`.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import io
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import IO, Any, Callable, cast

import torch

from ..base import codec, world
from ..base.location import here
from ..ranks import file_sync
from . import callsites, entries, errors, nowhere, temporary
from .callsites import Call, call_of, is_own
from .disk_functions import DOORS, Door
from .journal import Entry, Journal

_real_open, _real_os_open, _real_stat = builtins.open, os.open, os.stat
_journal: Journal | None = None
_is_installed = False
_handles = itertools.count()  # of files that rank 0 has opened


def install(store: Any, load: Any = None) -> None:
    """From now on this rank has no hands; rank 0 tells what it does. Also under names that modules have imported.

    Args:
        store: the ranks'; None in a child of a rank that has no hands, which asks nobody.
        load: what stands in the place of `torch.load`, if anything does.
    """
    global _journal, _is_installed
    if _is_installed:
        return
    _is_installed = True
    _journal = None if store is None else Journal(store)
    if not file_sync.writes():
        os.environ[file_sync.HANDLESS] = str(os.getpid())
    tempfile.gettempdir()  # which looks for it the first time
    private: Any = tempfile
    private._sanitize_params = _among_temporary_files(private._sanitize_params)
    made: dict[int, Any] = {}
    for door in DOORS:
        real = getattr(door.owner, door.name)
        made[id(real)] = _through(door, real)
        setattr(door.owner, door.name, made[id(real)])
    made[id(_real_open)], made[id(_real_os_open)] = open_file, _open_descriptor
    made[id(tempfile.mkstemp)] = _mkstemp
    made[id(tempfile.NamedTemporaryFile)] = temporary.named(tempfile.NamedTemporaryFile, _made_in, open_file)
    tempfile.mkstemp = _mkstemp  # type: ignore[assignment]
    tempfile.NamedTemporaryFile = made[id(tempfile.NamedTemporaryFile)]
    builtins.open = io.open = open_file  # type: ignore[assignment]
    os.open = _open_descriptor
    made[id(torch.load)] = load or torch.load
    torch.save, torch.load = _saving(torch.save), load or torch.load
    subprocess.Popen.__init__ = _starting(subprocess.Popen.__init__)  # type: ignore[method-assign]
    kept = getattr(pathlib, "_NormalAccessor", None)  # before Python 3.11
    for namespace in [*map(vars, list(filter(_is_python, list(sys.modules.values()))))]:
        for name, value in list(namespace.items()):
            if id(value) in made and namespace is not vars(os):
                namespace[name] = made[id(value)]
    for name, value in list(vars(kept).items()) if kept else ():
        function = value.__func__ if isinstance(value, staticmethod) else value
        if id(function) in made:
            setattr(kept, name, staticmethod(made[id(function)]))


def _is_python(module: Any) -> bool:
    """Whether a module's own imported names lead to doors; those that serve Python itself keep the real ones."""
    file = getattr(module, "__file__", None)
    return isinstance(module, ModuleType) and bool(file) and not callsites.is_aside(str(file))


def _among_temporary_files(real: Any) -> Any:
    """What `tempfile` makes of its arguments: no rank has files of its own in a folder that rank 0 may list."""

    @functools.wraps(real)
    def sanitized(prefix: Any, suffix: Any, dir: Any) -> Any:
        if dir is not None and not file_sync.writes():
            dir = tempfile.gettempdirb() if isinstance(os.fspath(dir), bytes) else tempfile.gettempdir()
        return real(prefix, suffix, dir)

    return sanitized


_real_mkstemp = tempfile.mkstemp


def _made_in(suffix: Any, prefix: Any, dir: Any, text: bool = False) -> tuple[int, str] | None:
    """A temporary file of rank 0's in a folder that the script chose: a descriptor that leads nowhere on the others.

    None if it is a rank's own.
    """
    call = call_of("tempfile.mkstemp", [dir], 3)
    if call is None or not call.shared:
        return None
    real = functools.partial(_real_mkstemp, suffix, prefix, dir, text)
    found = _through_call(Door(tempfile, "mkstemp", encode=lambda made: made[1]), call, real)
    if world.is_main() or found is None:
        return cast("tuple[int, str] | None", found)
    with tempfile.TemporaryFile() as private:
        return os.dup(private.fileno()), found


@functools.wraps(_real_mkstemp)
def _mkstemp(suffix: Any = None, prefix: Any = None, dir: Any = None, text: bool = False) -> tuple[int, str]:
    """`tempfile.mkstemp`."""
    found = None if dir is None else _made_in(suffix, prefix, dir, text)
    return _real_mkstemp(suffix, prefix, dir, text) if found is None else found


def end() -> None:
    """Tell what is left to tell; the store goes."""
    global _journal
    if _journal is not None and world.is_main():
        with suppress(RuntimeError):  # its host is gone
            _journal.flush()
    _journal = None


def by_main(what: str, real: Callable[[], Any], path: Any = None) -> Any:
    """`real()`, done by rank 0 alone; the others come back with None when it is over.

    In what not all ranks do together it is done by the rank that writes there, and nobody waits.

    Args:
        what: names it in a message.
        path: what it overwrites, if that is there.

    Raises:
        Exception: what `real` raises, on every rank.
    """
    if _journal is None or file_sync.shared() is None:
        return real() if file_sync.writes() else None
    place = here()
    overwrites = isinstance(path, (str, os.PathLike))
    about = zlib.crc32(os.fsencode(path)) if overwrites else 0
    door = Door(os, what, removes=overwrites and _is_there(path), encode=lambda made: None)
    return _through_call(door, Call(True, f"{what} {place.line} {place.stack}", about, place.line), real)


def _through(door: Door, real: Any) -> Any:
    """What stands in a function's place."""

    @functools.wraps(real)
    def function(*args: Any, **kwargs: Any) -> Any:
        paths = door.paths_in(args, kwargs)
        if "dir_fd" in kwargs and kwargs["dir_fd"] is not None:
            return real(*args, **kwargs)
        call = None if any(isinstance(path, int) for path in paths) else call_of(door.full_name, paths)
        if call is None:
            return real(*args, **kwargs)
        if not call.shared:
            return real(*args, **kwargs) if door.asks or file_sync.writes() else None
        check = bool(kwargs.pop("check", False)) and door.owner is subprocess
        told = _with_its_files(door, args, kwargs) if door.starts else door
        made = _through_call(told, call, functools.partial(real, *args, **kwargs))
        if not world.is_main() and door.name in ("rename", "renames", "replace", "move") and is_own(paths[0]):
            _drop(paths[0])
        if check:
            made.check_returncode()
        return made

    function.__module__ = door.owner.__name__ if isinstance(door.owner, ModuleType) else door.owner.__module__
    return function


def _with_its_files(door: Door, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Door:
    """The door, for a program that is told to write to the rank's own files: what it writes there is told, too."""
    command = args[0] if args else kwargs.get("args", kwargs.get("command", ""))
    own = temporary.in_command(command, [kwargs.get("stdout"), kwargs.get("stderr")], callsites.made)
    before = temporary.seen(own) if world.is_main() else {}

    def decode(told: Any) -> Any:
        temporary.write(own, told[1])
        return door.decode(told[0])

    return replace(door, encode=lambda made: [door.encode(made), temporary.changed(own, before)], decode=decode)


def _through_call(door: Door, call: Call, real: Callable[[], Any]) -> Any:
    """Rank 0 does it and tells; the others hear of it."""
    journal = _journal
    assert journal is not None
    what = f"{call.key.partition(' ')[0]} in {call.line}"
    if not world.is_main():
        entry = journal.hear(call.key, call.about, what)
        if entry is None:
            return real() if door.asks else None
        if entry.how == "error":
            raise errors.retold(*entry.value)
        return None if entry.value is None else door.decode(codec.loads(entry.value, []))
    if door.removes:
        journal.let_pass(call.key, call.about, what)
    try:
        with file_sync.alone("main"):
            made = real()
            told: Any = door.encode(made)
    except Exception as error:
        journal.tell(Entry(call.key, call.about, "error", errors.told(error)), soon=door.asks)
        raise
    text = None
    with suppress(TypeError):  # nothing that can be told
        text = codec.dumps(told, [])
    journal.tell(Entry(call.key, call.about, "ok", text), soon=door.asks)
    return door.decode(told) if door.decode is entries.Entries else made


def _drop(path: Any) -> None:
    """Remove what this rank has made only to move it to where rank 0 moves its own."""
    with suppress(OSError), file_sync.alone("own"):
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


@functools.wraps(_real_open)
def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
    """Python's `open`."""
    return _opened(file, mode, args, kwargs)


open_file.__module__, open_file.__qualname__ = "builtins", "open"


def _opened(file: Any, mode: str, args: Any, kwargs: Any) -> IO[Any]:
    call = None if isinstance(file, int) or not isinstance(mode, str) else call_of("open", [file], 3)
    if call is None:  # its opener's calls may be this rank's own as well
        return _real_open(file, mode, *args, **kwargs)
    writes = bool(set(mode) & set("wax+"))
    if not (call.shared or (writes and not file_sync.writes())):
        return _really_opened(file, mode, args, kwargs)
    if not call.shared:
        return nowhere.handle(file, mode, *args, **_without_opener(kwargs))
    journal = _journal
    assert journal is not None
    what = f"open({os.fspath(file)!r}, {mode!r}) in {call.line}"
    if not world.is_main():
        entry = journal.hear(call.key, call.about, what)
        if entry is not None and entry.how == "error":
            raise errors.retold(*entry.value)
        if not writes:
            return _really_opened(file, mode, args, kwargs)
        made = nowhere.handle(file, mode, *args, **_without_opener(kwargs))
        if entry is not None:
            nowhere.on_close(made, functools.partial(_closed, f"close {entry.value}", what))
        return made
    if writes and not set(mode) & set("ax") and _is_there(file):
        journal.let_pass(call.key, call.about, what)
    try:
        made = _really_opened(file, mode, args, kwargs)
    except Exception as error:
        journal.tell(Entry(call.key, call.about, "error", errors.told(error)), soon=not writes)
        raise
    number = next(_handles)
    journal.tell(Entry(call.key, call.about, "ok", number), soon=not writes)
    if writes:
        nowhere.on_close(made, functools.partial(_closed, f"close {number}", what))
    return made


def _is_there(path: Any) -> bool:
    with suppress(OSError, ValueError):
        return bool(_real_stat(path))
    return False


def _really_opened(file: Any, mode: str, args: Any, kwargs: Any) -> IO[Any]:
    with file_sync.alone("main"):  # an opener goes through another door (before Python 3.10 pathlib's)
        return _real_open(file, mode, *args, **kwargs)


def _closed(key: str, what: str) -> None:
    """A file that was written has been closed: rank 0 tells, the others wait for that."""
    journal = _journal
    if journal is None or file_sync.store() is None:
        return
    with suppress(RuntimeError):  # at the very end the store's host may be gone
        if world.is_main():
            journal.tell(Entry(key, 0, "ok", None))
        else:
            journal.hear(key, 0, f"the end of {what}")


def _without_opener(kwargs: Any) -> Any:
    return {name: value for name, value in kwargs.items() if name not in ("opener", "closefd")}


@functools.wraps(_real_os_open)
def _open_descriptor(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """`os.open`."""
    name = "os.open" if flags & os.O_CREAT else "os.open of what is there"  # or a file without a name, in that folder
    call = None if isinstance(path, int) or dir_fd is not None else call_of(name, [path])
    writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    real = functools.partial(_real_os_open, path, flags, mode, dir_fd=dir_fd)
    if call is None or not (call.shared or (writes and not file_sync.writes())):
        return real()
    if call.shared:
        door = Door(os, "open", asks=not writes, removes=bool(flags & os.O_TRUNC), encode=lambda made: None)
        found = _through_call(door, call, real)
        if world.is_main():
            return int(found)
    if not writes:
        return real()
    with tempfile.TemporaryFile() as private:
        return os.dup(private.fileno())


def _saving(real: Any) -> Any:
    """`torch.save`, which writes from C++."""

    @functools.wraps(real)
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        if not isinstance(f, (str, os.PathLike)):
            real(obj, f, *args, **kwargs)
            return
        call = call_of("torch.save", [f])
        if call is None or (not call.shared and file_sync.writes()):
            real(obj, f, *args, **kwargs)
        elif call.shared:
            door = Door(torch, "save", removes=_is_there(f))
            _through_call(door, call, lambda: real(obj, f, *args, **kwargs))

    return save


def _starting(real: Any) -> Any:
    """`subprocess.Popen`: a process whose output is read runs on every rank; any other is rank 0's."""
    signature = inspect.signature(real)

    @functools.wraps(real)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        call = call_of("subprocess.Popen", [])
        if call is None or file_sync.writes() or given.get("stdout") == subprocess.PIPE:
            real(self, *args, **kwargs)
            return
        given.update(args=[sys.executable, "-c", "import sys; sys.stdin.buffer.read()"], shell=False, executable=None)
        if given.get("stdin") is None:
            given["stdin"] = subprocess.DEVNULL
        given.pop("cwd", None)
        real(**given)

    return init
