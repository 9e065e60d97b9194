"""Where each thread stands, without its frames: who holds a frame keeps its variables, and files open that they are."""

from __future__ import annotations

import faulthandler
import re
import tempfile
from typing import NamedTuple

_THREAD = re.compile(r"(?:Current t|T)hread 0x([0-9a-f]+)")
_LINE = re.compile(r'  File "(.*)", line (\d+) in ')
_ESCAPED = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")


class Line(NamedTuple):
    """A line that is run, or has called what is."""

    filename: str
    number: int


def all_threads() -> dict[int, list[Line]]:
    """The lines that led each thread to where it is, from the innermost one, by the threads' ident.

    Of a hundred threads at most, and a hundred lines of each: `faulthandler`, which lets no thread run meanwhile.
    """
    found: dict[int, list[Line]] = {}
    own: list[Line] = []
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file.fileno())
        file.seek(0)
        for text in file.read().decode("ascii").splitlines():
            if thread := _THREAD.match(text):
                own = found.setdefault(int(thread[1], 16), [])
            elif line := _LINE.match(text):
                own.append(Line(_ESCAPED.sub(lambda code: chr(int(code[0][2:], 16)), line[1]), int(line[2])))
    return found
