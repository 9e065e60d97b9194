"""Errors that rank 0 raised, told to the others, where the same handlers have to catch them."""

from __future__ import annotations

import builtins
from typing import Any


def told(error: BaseException) -> list[Any]:
    """What makes an error again, as JSON takes it: the nearest of Python's own classes, and its arguments."""
    if isinstance(error, SystemExit):  # a message is shown once, here
        return ["SystemExit", [error.code if isinstance(error.code, int) else int(error.code is not None)]]
    if isinstance(error, OSError) and isinstance(error.errno, int):  # by the number Python finds the class
        return ["OSError", [error.errno, error.strerror, *([str(error.filename)] if error.filename else [])]]
    kinds = [each for each in type(error).__mro__ if each.__module__ == "builtins"]
    kind = next(each for each in kinds if not issubclass(each, UnicodeError))  # these aren't made of a text
    text = str(error.args[0] if len(error.args) == 1 else error)
    return [kind.__name__, [text if kind is type(error) else f"{type(error).__name__}: {text}"]]


def retold(name: str, arguments: list[Any]) -> BaseException:
    """An error that `told` has told of. Nothing in the store is imported or called but Python's own exceptions."""
    kind = getattr(builtins, name)
    if not issubclass(kind, BaseException):
        raise TypeError(f"{name} is no exception")
    return kind(*arguments)
