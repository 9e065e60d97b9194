"""Who changes files in what not all ranks do together (`whose.mode_of`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

mode: ContextVar[str] = ContextVar("mode", default="")


@contextmanager
def acting(how: str) -> Iterator[None]:
    """`with acting("own"):` around what not all ranks do, or not to the same files."""
    token = mode.set(how)
    try:
        yield
    finally:
        mode.reset(token)
