"""Where the user's script is: the line that an error names, and what ranks compare when they meet."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import NamedTuple

import torch


def _folders(*paths: str) -> tuple[str, ...]:
    return tuple(os.path.realpath(path) + os.sep for path in paths)


RUNTIME = os.path.dirname(os.path.dirname(__file__))
_NEVER = _folders(RUNTIME, os.path.dirname(torch.__file__))
_INSTALLED = _folders(*map(sysconfig.get_path, ("purelib", "platlib", "scripts")))
_PYTHON = _folders(sysconfig.get_path("stdlib"))  # the installed packages may lie in it


class Location(NamedTuple):
    """A line of the script, and how it came there."""

    line: str  # the innermost one of the program's own, as `train.py:57`; empty if there is none (a thread of torch's)
    stack: int  # a checksum of all lines of the program's own that led there


def here(of: FrameType | None = None) -> Location:
    """Where the script is now, or in a frame of this thread's. Lines of torch, packages and this runtime don't count.

    Of a program that is installed as a package itself, started by a command, all lines but Python's and torch's do.
    """
    return located(_lines(of or sys._getframe()))


def located(lines: Iterable[tuple[str, int]]) -> Location:
    """The location that lines are, each a file's path and a number, from the innermost one."""
    own: list[str] = []
    installed: list[str] = []
    for filename, number in lines:
        name, is_installed = _origin(filename)
        if name:
            (installed if is_installed else own).append(f"{name}:{number}")
    found = own or installed or [""]
    return Location(found[0], zlib.crc32("\n".join(found).encode()))


def leave_out(folder: str) -> None:
    """Count no lines of the code in a folder, which runs the script without being of it. Before any is asked for."""
    global _NEVER
    _NEVER += _folders(folder)


def files() -> Iterator[str]:
    """The paths of all files that are run or imported right now, but for Python's, torch's and this runtime's."""
    return (filename for filename, _ in _lines(sys._getframe()) if _origin(filename)[0])


def is_of_script(filename: str) -> bool:
    """Whether a file is the user's own, and no package that is installed."""
    name, is_installed = _origin(filename)
    return bool(name) and not is_installed


def _lines(frame: FrameType | None) -> Iterator[tuple[str, int]]:
    """The lines that led to `frame`, from the innermost one."""
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


@functools.cache
def _origin(filename: str) -> tuple[str, bool]:
    """A file's name, and whether it is installed rather than the user's; no name if it is Python's, torch's or ours."""
    path = os.path.realpath(filename)
    is_installed = path.startswith(_INSTALLED)
    if filename.startswith("<") or path.startswith(_NEVER) or (path.startswith(_PYTHON) and not is_installed):
        return "", False
    # Without folders: on another machine they may be others.
    return os.path.basename(filename), is_installed
