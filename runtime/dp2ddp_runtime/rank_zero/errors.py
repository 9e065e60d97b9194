"""Errors that one rank raised, told to others, where the same handlers have to catch them."""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from typing import Any


def told(error: BaseException) -> list[Any]:
    """The names of an error's classes, its text, and what an `OSError` is made of, as JSON takes them."""
    names = [[kind.__module__, kind.__name__] for kind in type(error).__mro__]
    if isinstance(error, SystemExit):  # a message is shown once, here
        return [names, error.code if isinstance(error.code, (int, type(None))) else 1, []]
    text = error.args[0] if isinstance(error, KeyError) and error.args else error  # its own text is that in quotes
    parts = []
    if isinstance(error, OSError) and isinstance(error.errno, int):
        parts = [error.errno, str(error.strerror), None if error.filename is None else str(error.filename)]
    return [names, str(text), parts]


def retold(names: list[list[str]], text: Any, parts: list[Any]) -> BaseException:
    """The same exception, or the nearest that this process has a class for.

    Nothing that is in the store, which another user may reach, is imported or called but for exceptions' classes.
    """
    first = names[0][1]
    for module, name in names:
        kind = getattr(sys.modules.get(module), name, None)
        if not inspect.isclass(kind) or not issubclass(kind, (Exception, SystemExit)) or kind is Exception:
            continue
        with suppress(TypeError):  # it isn't made from a text
            if parts:
                return kind(*parts[:2], *(parts[2:] if parts[2] is not None else []))
            return kind(text if name == first or kind is SystemExit else f"{first}: {text}")
        bare = kind.__new__(kind, text)
        if str(bare) == text:
            return bare
    return RuntimeError(f"{first}: {text}")
