"""Where the user's script is: the line that an error names, and what ranks compare when they meet."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig
import zlib
from typing import NamedTuple

import torch

_FOREIGN = tuple(
    os.path.realpath(folder) + os.sep
    for folder in (
        os.path.dirname(__file__),
        os.path.dirname(torch.__file__),
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
    )
)


class Place(NamedTuple):
    """A place in the script."""

    line: str
    """The innermost line of the user's own, as `train.py:57`; empty where there is none (in a thread of torch's)."""
    stack: int
    """A checksum of all lines of the user's own that led there."""


def here() -> Place:
    """Where the script is now. Lines of torch, of installed packages and of this runtime don't count."""
    lines = []
    frame = sys._getframe(1)
    while frame is not None:
        name = _own_name(frame.f_code.co_filename)
        if name:
            lines.append(f"{name}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return Place(lines[0] if lines else "", zlib.crc32("\n".join(lines).encode()))


@functools.cache
def _own_name(filename: str) -> str:
    """The file's name; empty if the file isn't the user's."""
    if filename.startswith("<") or os.path.realpath(filename).startswith(_FOREIGN):
        return ""
    # Without folders: on another machine they may be others.
    return os.path.basename(filename)
