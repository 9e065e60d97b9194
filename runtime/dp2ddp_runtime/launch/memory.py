"""Memory of a rank on the CPU: what a step has freed, the next one needs again."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

# From malloc.h, see https://man7.org/linux/man-pages/man3/mallopt.3.html
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE = 1 << 28  # bytes of a block that goes back to the system at once
_MOST = 1 << 30  # bytes that are free at the end of the heap


def keep() -> None:
    """Let glibc keep what is freed, rather than give it back and have each of its pages cleared anew in every step.

    A block of 20 MB that comes and goes (a batch, an output) costs 3 to 10 ms of a processor each time; whether it does
    depends on where others happen to lie. Where `MALLOC_..._` or `GLIBC_TUNABLES` are in the environment, they count.
    """
    if any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ):
        return
    with suppress(AttributeError, OSError, TypeError):  # no glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
        mallopt(_M_TRIM_THRESHOLD, _MOST)
