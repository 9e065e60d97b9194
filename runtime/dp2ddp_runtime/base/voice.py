"""Who is heard: a silent rank is, where it does what no other rank does, such as loading its own samples."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from . import world

#: In a rank's place that the launcher gives it: the descriptor of its standard output, where the rank's leads nowhere.
HEARD = "STDOUT"

_is_silent = False  # this process, where nothing else is said
_said: ContextVar[bool | None] = ContextVar("said", default=None)  # in this thread, for a while
_stdout = -1  # where standard output led before this process was silenced


def is_heard() -> bool:
    """Whether what this thread says is shown."""
    said = _said.get()
    return not _is_silent if said is None else said


class Voice:
    """A stream, but for what is written: that goes `aloud` where this thread is heard, and else `nowhere`."""

    def __init__(self, nowhere: Any, aloud: Any) -> None:
        self._nowhere, self._aloud = nowhere, aloud

    def write(self, text: str) -> Any:  # a script's own stream may give anything
        return (self._aloud if is_heard() else self._nowhere).write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        for stream in (self._aloud, self._nowhere):
            stream.flush()

    def __getattr__(self, name: str) -> Any:
        if name in ("_nowhere", "_aloud"):  # while it is copied
            raise AttributeError(name)
        return getattr(self._nowhere, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._nowhere)


def silence() -> None:
    """From now on this process says nothing, below Python neither, but where it is `heard`."""
    global _is_silent, _stdout
    _is_silent = True
    with contextlib.suppress(OSError):  # it was closed
        _stdout = os.dup(int(json.loads(os.environ.get(world.PLACE, "{}")).get(HEARD, 1)))
    with open(os.devnull, "r+b", buffering=0) as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    streams: Any = sys
    nowhere = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115 - as Python's own
    if _stdout >= 0:
        code = getattr(sys.stdout, "encoding", None) or "utf-8"
        aloud = open(_stdout, "w", 1, code, "replace", closefd=False)  # noqa: SIM115 - as long as the process
        streams.stdout = Voice(sys.stdout, aloud)
    known, streams.stderr = sys.stderr, nowhere if sys.__stderr__ is None else Voice(nowhere, sys.__stderr__)
    _replace(known, sys.stderr)


def terminal() -> int:
    """The terminal, whose size modules ask for while they are imported; it can't be read. Without one, nothing."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # there is none
            return os.open(os.ttyname(0), os.O_WRONLY | os.O_NOCTTY)
    return subprocess.DEVNULL


def _replace(known: Any, new: Any) -> None:
    """Where a module or a class of one has kept standard error (`from sys import stderr`), as bars do."""
    for module in [each for each in [*sys.modules.values()] if isinstance(each, ModuleType) and each is not sys]:
        classes = [each for each in [*vars(module).values()] if isinstance(each, type)]
        for holder in (module, *(each for each in classes if each.__module__ == module.__name__)):
            for name in [name for name, value in [*vars(holder).items()] if value is known]:
                setattr(holder, name, new)


@contextlib.contextmanager
def heard(is_shown: bool = True) -> Iterator[None]:
    """What this thread says meanwhile is shown, or (`is_shown=False`) isn't. By Python alone: not what C++ prints."""
    streams: Any = sys
    before, token = (sys.stdout, sys.stderr), _said.set(is_shown)
    with contextlib.ExitStack() as stack:
        if not is_shown and not _is_silent:
            nothing = stack.enter_context(open(os.devnull, "w"))
            streams.stdout, streams.stderr = (Voice(nothing, stream) for stream in before)
            stack.callback(vars(sys).update, stdout=before[0], stderr=before[1])
        stack.callback(_said.reset, token)
        yield


def speak() -> None:
    """From now on this process, a loader's worker, is heard in all it says."""
    global _is_silent
    if _is_silent and _stdout >= 0:
        _is_silent = False
        os.dup2(_stdout, 1)


class StandIn(list[Any]):
    """A batch's indices whose samples another rank loads as well, so that this one is silent meanwhile."""

    def __iter__(self) -> Iterator[Any]:
        with heard(False):
            yield from super().__iter__()

    def __reduce__(self) -> Any:
        return type(self), ([*super().__iter__()],)
