"""Programs that the script starts: rank 0's alone, unless their output is read.

What a program changes isn't seen. So it waits, on rank 0, until the others have come to it, and what they know of the
disk ends when it has ended.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import subprocess
import sys
from typing import Any, Callable

import torch

from . import codec, place
from .acting import acting
from .disk import EVERYTHING, disk, wait_or_see
from .store import has, publish
from .whose import mode_of, temporary, turn
from .world import world

_TORCH = os.path.dirname(torch.__file__) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep


def patches() -> list[tuple[Any, str, Any, str]]:
    """What is replaced: where, which, by what, and why."""
    popen: Any = subprocess.Popen
    return [
        (os, "system", _system(os.system), "rank 0 runs a program, and tells what it came to"),
        (popen, "__init__", _starting(popen.__init__), "the same"),
    ]


def _is_rank_0s(command: Any) -> bool:
    """Whether a program is one of the script's. Compilers' are each rank's: torch's, or about its own files."""
    if mode_of() == "own":
        return False
    words = [command] if isinstance(command, (str, bytes, os.PathLike)) else command
    text = "\0".join(os.fsdecode(word) for word in words)
    return not any(name in text for name in temporary) and not _is_for_torch(sys._getframe(2))


def _is_for_torch(frame: Any) -> bool:
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith((_TORCH, place.HERE[0])) and not name.startswith(__file__):
            return True
        if not name.startswith((_PYTHON, "<", __file__)) or "site-packages" in name:
            return False
        frame = frame.f_back
    return False


def _told_by_main(key: str, call: Callable[[], int | None]) -> int | None:
    """An exit code, as rank 0's `call` gave it; None as long as there is none. Then all that ran before is over."""
    if not world.rank:
        try:
            code = call()
        except subprocess.TimeoutExpired as error:
            publish(key, [error.timeout])
            raise
        publish(key, [None, code, 0 if code is None else disk.ran(), world.count])
        return code
    found = wait_or_see(lambda: has(key), 0, f"rank 0's {key}")
    if not found:
        return call()
    late, *rest = codec.decode(world.store.get(key))
    if late is not None:
        raise subprocess.TimeoutExpired(key, late)
    code, programs, count = rest
    if code is not None:
        disk.heard_of(programs, count)
    return code  # type: ignore[no-any-return]


def _system(real: Callable[[Any], int]) -> Callable[[Any], int]:
    @functools.wraps(real)
    def system(command: Any) -> int:
        if mode_of() == "mute":
            return 0
        if not _is_rank_0s(command):
            return real(command)
        key = turn("os.system")
        disk.meets(EVERYTHING)
        return _told_by_main(key, (lambda: 0) if world.rank else lambda: real(command)) or 0

    return system


def _starting(real: Any) -> Any:
    signature = inspect.signature(real)

    @functools.wraps(real)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        is_read = subprocess.PIPE in (given.get("stdout"), given.get("stderr"))
        if is_read or not _is_rank_0s(given["args"]):
            real(self, *args, **kwargs)
            return
        key = turn("a program")
        if not mode_of():
            disk.meets(EVERYTHING)
        if world.rank:
            command = given["args"]
            _start_nothing(real, given)
            self.args = command  # by which errors name it
        else:
            with acting("own"):
                real(self, *args, **kwargs)
        if not mode_of():
            _share_codes(self, key)

    return init


def _start_nothing(real: Any, given: dict[str, Any]) -> None:
    """A process that takes what it is told, and does nothing."""
    for name in ("cwd", "executable", "preexec_fn"):
        given.pop(name, None)
    given.update(args=["cat"], shell=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if given.get("stdin") is None:
        given["stdin"] = subprocess.DEVNULL
    with acting("own"):
        real(**given)


def _share_codes(process: Any, key: str) -> None:
    """What `poll` and `wait` give is what rank 0's do, each time."""
    asked, wait = itertools.count(), process.wait

    def shared(ask: Callable[..., int | None], *args: Any, **kwargs: Any) -> int | None:
        code = _told_by_main(f"{key}/{next(asked)}", lambda: ask(*args, **kwargs))
        if world.rank and code is not None:
            wait()  # it ends by itself
            process.returncode = code
        return code

    process.poll, process.wait = functools.partial(shared, process.poll), functools.partial(shared, wait)
