"""The script's line, which errors name, and ranks compare when they meet."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import traceback
import warnings
from types import FrameType

import torch

from .acting import acting


def _folders(*paths: str) -> tuple[str, ...]:
    return tuple(os.path.realpath(path) + os.sep for path in paths)


HERE = _folders(os.path.dirname(__file__), os.path.dirname(os.path.realpath(__file__)))  # it may be linked
_NEVER = [*HERE, *_folders(os.path.dirname(torch.__file__))]
_INSTALLED = _folders(*map(sysconfig.get_path, ("purelib", "platlib", "scripts")))
_PYTHON = _folders(sysconfig.get_path("stdlib"))  # the installed packages may lie in it


def line(frame: FrameType | None = None) -> str:
    """The innermost line of the user's own that led here (or to a frame), as `train.py:57`.

    Lines of Python, torch and this runtime don't count, nor those of installed packages, unless there are no others.
    Empty in a thread in which none of these runs.
    """
    installed = ""
    for each, number in traceback.walk_stack(frame or sys._getframe(1)):
        name, is_installed = origin(each.f_code.co_filename)
        if name and not is_installed:
            return f"{name}:{number}"
        installed = installed or (name and f"{name}:{number}")
    return installed


def is_scripts(frame: FrameType) -> bool:
    """Whether a line of the user's own led to a frame."""
    origins = (origin(each.f_code.co_filename) for each, _ in traceback.walk_stack(frame))
    return any(name and not is_installed for name, is_installed in origins)


def warn(text: str) -> None:
    """A warning that names the script's line."""
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    frame = next((frame for frame in frames if origin(frame.f_code.co_filename)[0]), None)
    if frame is None:
        warnings.warn(text, stacklevel=2)
    else:
        warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)


def leave_out(folder: str) -> None:
    """Count no lines of a folder's code, which runs the script without being of it."""
    _NEVER.extend(_folders(folder))
    origin.cache_clear()


@functools.cache
def origin(filename: str) -> tuple[str, bool]:
    """A file's name, and whether it is installed rather than the user's; no name if it is Python's, torch's or ours."""
    with acting("own"):  # a look of the runtime's own
        path = os.path.realpath(filename)
    is_installed = path.startswith(_INSTALLED)
    if filename.startswith("<") or path.startswith(tuple(_NEVER)) or (path.startswith(_PYTHON) and not is_installed):
        return "", False
    return os.path.basename(filename), is_installed  # without folders: on another machine they may be others
