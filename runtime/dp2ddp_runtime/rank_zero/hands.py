"""A rank other than 0 has eyes, but no hands: what Python's calls on the disk do there.

Rank 0's calls are done, and told to the others (`journal`). The same calls of other ranks change nothing and come to
the same: the same answers to questions, the same errors (as the nearest of Python's own). So they all take the same
way, however late one of them is.

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
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import IO, Any, Callable, cast

import torch

from ..base import codec, world
from ..base.location import here
from ..ranks import file_sync
from . import callsites, handles, temporary
from .callsites import Call, belongs_to_this_rank, call_of
from .doors import DOORS, Door
from .journal import Journal

try:
    import fcntl
    import termios
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_real_open, _real_os_open, _real_stat = builtins.open, os.open, os.stat
_journal: Journal | None = None
_is_installed = False
_numbers = itertools.count()  # of files that rank 0 has opened to write


def install(store: Any, load: Any = None) -> None:
    """From now on this rank has no hands; rank 0 tells what it does. Also under names that modules have imported.

    Without a store this is a child of a rank that has no hands, and asks nobody. `load` is in the place of
    `torch.load`.
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
    stand_ins = [(each.owner, each.name, _stand_in_for(each, getattr(each.owner, each.name))) for each in DOORS]
    stand_ins += [
        (builtins, "open", open_file),
        (io, "open", open_file),
        (os, "open", _open_descriptor),
        (tempfile, "NamedTemporaryFile", temporary.named(tempfile.NamedTemporaryFile, _made_in, open_file)),
        (tempfile, "mktemp", temporary.name_of_own(tempfile.mktemp)),
        (torch, "load", load or torch.load),
        (subprocess.Popen, "__init__", _starting(subprocess.Popen.__init__)),
        (os, "popen", _popen(os.popen)),
    ]
    if fcntl is not None:
        stand_ins.append((fcntl, "ioctl", _asking_for_size(fcntl.ioctl)))
    made = {id(getattr(owner, name)): stand_in for owner, name, stand_in in stand_ins}
    for owner, name, stand_in in stand_ins:
        setattr(owner, name, stand_in)
    handles.lead_early(open_file)
    for holder in [each for module in [*sys.modules.values()] if _is_python(module) for each in _holders(module)]:
        for name, value in list(holder.items()):
            if id(value) in made:
                holder[name] = made[id(value)]
    accessor = getattr(pathlib, "_NormalAccessor", None)  # before Python 3.11
    for name, value in list(vars(accessor).items()) if accessor else ():
        function = value.__func__ if isinstance(value, staticmethod) else value
        if id(function) in made:
            setattr(accessor, name, staticmethod(made[id(function)]))


def _holders(module: ModuleType) -> Iterator[dict[Any, Any]]:
    """Where a module holds functions: its names, small dicts of it and of its own objects (numpy's `{None: open}`)."""
    yield vars(module)
    for value in [*vars(module).values()]:
        is_own = type(value).__module__ == module.__name__ and hasattr(value, "__dict__")
        parts = vars(value).values() if is_own else (value,)
        yield from [part for part in parts if type(part) is dict and len(part) < 100]  # torch's large ones take long


def _is_python(module: Any) -> bool:
    """Whether a module's own imported names lead to doors; those that serve Python itself keep the real ones."""
    file = getattr(module, "__file__", None)
    return isinstance(module, ModuleType) and module is not os and bool(file) and not callsites.is_aside(str(file))


def end() -> None:
    """Tell what is left to tell; the store goes."""
    global _journal
    if _journal is not None and world.is_main():
        _journal.flush()
    _journal = None


def _nothing(*_: Any) -> None:
    """Nothing of an answer is told, or needed to make it again."""


def by_main(what: str, real: Callable[[], Any], path: Any = None, told: Callable[[Any], Any] = _nothing) -> Any:
    """`real()`, done by rank 0 alone; the others come back when it is over, with what is `told` of what it made.

    In what not all ranks do together it is done by the rank that writes there, and nobody waits. What `real`
    raises, it raises on all ranks. `path` is what it overwrites, if that is there.
    """
    if _journal is None or file_sync.shared() is None:
        return real() if file_sync.writes() else None
    paths = [path] if isinstance(path, (str, os.PathLike)) else []
    door = Door(os, what, removes=any(map(_is_there, paths)), told=told)
    return _carry_out(door, callsites.shared_call(what, paths, here()), real)


def _carry_out(door: Door, call: Call, real: Callable[[], Any]) -> Any:
    """What the script's call comes to on this rank: rank 0 does it and tells, the others hear of it."""
    journal = _journal
    if not call.shared or journal is None:
        return real() if door.asks or file_sync.writes() else door.absent()
    if not world.is_main():
        entry = journal.hear(call)
        if entry is None:
            return real() if door.asks else door.absent()
        if entry.how == "error":
            raise codec.error_again(*entry.value)
        return None if entry.value is None else door.made(codec.loads(entry.value, []))
    if door.removes:
        journal.let_pass(call)
    text = None
    try:
        with file_sync.not_together("main"):
            made = real()
            with suppress(TypeError):  # nothing that can be told
                text = codec.dumps(door.told(made), [])
    except Exception as error:
        journal.tell(call, "error", codec.told_error(error), soon=door.asks)
        raise
    journal.tell(call, "ok", text, soon=door.asks)
    return made


def _stand_in_for(door: Door, own: Any) -> Any:
    """What stands in a function's place."""

    @functools.wraps(own)
    def function(*args: Any, **kwargs: Any) -> Any:
        paths = door.paths_in(args, kwargs)
        by_name = all(isinstance(each, (str, bytes, os.PathLike, type(None))) for each in paths)
        call = call_of(door.full_name, paths) if by_name and kwargs.get("dir_fd") is None else None
        if call is None:
            return own(*args, **kwargs)
        check = bool(kwargs.pop("check", False)) and door.owner is subprocess
        told = _with_its_files(door, args, kwargs) if door.starts else door
        made = _carry_out(told, call, functools.partial(door.instead or own, *args, **kwargs))
        if call.shared and not world.is_main() and door.moves and belongs_to_this_rank(paths[0]):
            _drop(paths[0])
        if check and made is not None:
            made.check_returncode()
        return made

    function.__module__ = door.owner.__name__ if isinstance(door.owner, ModuleType) else door.owner.__module__
    return function


def _with_its_files(door: Door, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Door:
    """The door, for a program that is told to write to the rank's own files: what it writes there is told, too."""
    command = args[0] if args else kwargs.get("args", kwargs.get("command", ""))
    own, begun = temporary.in_command(command, [kwargs.get("stdout"), kwargs.get("stderr")]), time.time_ns()

    def made(told: Any) -> Any:
        temporary.write(own, told[1])
        return door.made(told[0])

    return replace(door, told=lambda done: [door.told(done), temporary.written(own, begun)], made=made)


def _drop(path: Any) -> None:
    """Remove what this rank has made only to move it to where rank 0 moves its own."""
    with suppress(OSError), file_sync.not_together("own"):
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def _is_there(path: Any) -> bool:
    with suppress(OSError, ValueError):
        return bool(_real_stat(path))
    return False


@functools.wraps(_real_open)
def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
    """Python's `open`."""
    call = None if isinstance(file, int) or not isinstance(mode, str) else call_of("open", [file])
    if call is None:  # its opener's calls may be this rank's own as well
        is_whole = "w" in str(mode) and not isinstance(file, int) and callsites.is_of_sample(sys._getframe(1))
        return (handles.whole if is_whole else _real_open)(file, mode, *args, **kwargs)
    call = call._replace(what=f"open({os.fspath(file)!r}, {mode!r}){call.what[len('open') :]}")

    def real(*_: Any) -> IO[Any]:
        with file_sync.not_together("main"):  # an opener goes through another door (before Python 3.10 pathlib's)
            return _real_open(file, mode, *args, **kwargs)

    def absent() -> IO[Any]:
        plain = {name: value for name, value in kwargs.items() if name not in ("opener", "closefd")}
        return handles.nowhere(file, mode, *args, **plain)

    def numbered(made: IO[Any], number: int) -> IO[Any]:
        end = Call(True, f"close {number}", what=f"the end of {call.what}")
        handles.on_close(made, functools.partial(_closed, end))
        return made

    def told(made: IO[Any]) -> int:
        number = next(_numbers)
        numbered(made, number)
        return number

    if not set(mode) & set("wax+"):
        return cast("IO[Any]", _carry_out(Door(builtins, "open", asks=True, told=_nothing, made=real), call, real))
    overwrites = not set(mode) & set("ax") and _is_there(file)
    door = Door(builtins, "open", removes=overwrites, told=told, made=lambda n: numbered(absent(), n), absent=absent)
    return cast("IO[Any]", _carry_out(door, call, real))


open_file.__module__, open_file.__qualname__ = "builtins", "open"


def _closed(call: Call) -> None:
    """A file that was written has been closed: rank 0 tells, the others wait for that."""
    journal = _journal
    if journal is None or file_sync.store() is None:
        return
    with suppress(RuntimeError):  # at the very end the store's host may be gone
        if world.is_main():
            journal.tell(call, "ok", None)
        else:
            journal.hear(call)


@functools.wraps(_real_os_open)
def _open_descriptor(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """`os.open`."""
    name = "os.open" if flags & os.O_CREAT else "os.open of what is there"  # or a file without a name, in that folder
    call = None if isinstance(path, int) or dir_fd is not None else call_of(name, [path])
    real = functools.partial(_real_os_open, path, flags, mode, dir_fd=dir_fd)
    if call is None:
        return real()
    writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    mine = handles.descriptor if writes else real
    door = Door(os, "open", removes=bool(flags & os.O_TRUNC), told=bool, absent=mine)
    return int(_carry_out(replace(door, made=lambda _: mine()), call, real))


def _among_temporary_files(real: Any) -> Any:
    """What `tempfile` makes of its arguments: no rank has files of its own in a folder that rank 0 may list."""

    @functools.wraps(real)
    def sanitized(prefix: Any, suffix: Any, dir: Any) -> Any:
        if dir is not None and not file_sync.writes():
            dir = tempfile.gettempdirb() if isinstance(os.fspath(dir), bytes) else tempfile.gettempdir()
        return real(prefix, suffix, dir)

    return sanitized


def _made_in(suffix: Any, prefix: Any, dir: Any) -> str | None:
    """The name of an empty temporary file of rank 0's in a folder that the script chose; None if it is a rank's own."""
    call = call_of("tempfile.mkstemp", [dir], 3)
    if call is None or not call.shared:
        return None

    def real() -> Any:
        descriptor, name = tempfile.mkstemp(suffix, prefix, dir)
        os.close(descriptor)
        return name

    return cast("str | None", _carry_out(Door(tempfile, "mkstemp"), call, real))


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


def _popen(real: Any) -> Any:
    """`os.popen`: the command is rank 0's, and goes on by itself; what it says is told to all where it is read.

    One that names a rank's own temporary file runs on every rank, as `subprocess.Popen` does whose output is read.
    """

    @functools.wraps(real)
    def popen(cmd: str, mode: str = "r", buffering: int = -1) -> Any:
        if mode != "r" or call_of("os.popen", []) is None or temporary.in_command(cmd, []):
            return real(cmd, mode, buffering)
        stream = None
        if file_sync.writes():
            with file_sync.not_together("own"):  # for the doors behind this one
                stream = real(cmd, mode, buffering)
        return handles.Output(stream, functools.partial(by_main, told=lambda made: made))

    return popen


def _asking_for_size(real: Any) -> Any:
    """`fcntl.ioctl`: how large a terminal is, is asked on rank 0; other ranks have none."""
    ask = _stand_in_for(Door(fcntl, "ioctl", asks=True, told=list, made=bytes), real)

    @functools.wraps(real)
    def ioctl(fd: Any, request: int, arg: Any = 0, mutate_flag: bool = True) -> Any:
        if request != termios.TIOCGWINSZ or isinstance(arg, int):
            return real(fd, request, arg, mutate_flag)
        room = memoryview(arg.encode() if isinstance(arg, str) else arg)
        size = ask(fd, request, bytes(room.nbytes))
        if room.readonly or not mutate_flag:
            return size
        room.cast("B")[:] = size
        return 0

    return ioctl
