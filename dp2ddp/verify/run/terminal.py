"""A terminal in which nobody types, to stand in for standard input.

Scripts ask standard input for the width of their progress bars (`stty size`), and end with an error where it is no
terminal. Ranks other than 0 can't have the real one: they would take away what is typed for rank 0.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress

with suppress(ImportError):  # Windows has no such terminals
    import fcntl
    import termios


def open_silent(lines: int, columns: int) -> tuple[int, int] | None:
    """Open a terminal of the given size, of which every read finds the end of the file.

    Returns:
        Two file descriptors: one that has to stay open as long as the terminal is in use, and the terminal's. None
        where the system has none to give.
    """
    try:
        keeper, terminal = os.openpty()
    except (AttributeError, OSError):
        return None
    mode = termios.tcgetattr(terminal)
    mode[3] &= ~(termios.ICANON | termios.ECHO)
    mode[6][termios.VMIN] = mode[6][termios.VTIME] = 0  # don't wait: nothing there is the end
    termios.tcsetattr(terminal, termios.TCSANOW, mode)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    return keeper, terminal
