"""Functions under names that modules have imported already (`from getpass import getpass`)."""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import torch

from .place import HERE


def replace(stand_ins: Sequence[tuple[Any, str, Any]], installed: bool = False) -> None:
    """Put others in the place of functions: where these are, and where the script's modules have them, by any name.

    Args:
        stand_ins: whose function, its name there, and what stands in for it.
        installed: also in installed modules, of which there are many.
    """
    made = {id(getattr(owner, name)): stand_in for owner, name, stand_in in stand_ins}
    for owner, name, stand_in in stand_ins:
        setattr(owner, name, stand_in)
    modules = [module for module in [*sys.modules.values()] if _is_python(module, installed)]
    for holder in [each for module in modules for each in _holders(module)]:
        for name, value in list(holder.items()):
            if id(value) in made:
                holder[name] = made[id(value)]
    accessor = getattr(pathlib, "_NormalAccessor", None)  # before Python 3.11
    for name, value in list(vars(accessor).items()) if accessor else ():
        function = value.__func__ if isinstance(value, staticmethod) else value
        if id(function) in made:
            setattr(accessor, name, staticmethod(made[id(function)]))


def _holders(module: ModuleType) -> Iterator[dict[Any, Any]]:
    """Where a module holds functions: its names, small dicts of it and of its own objects (numpy's `{None: open}`)."""
    yield vars(module)
    for value in [*vars(module).values()]:
        is_own = type(value).__module__ == module.__name__ and hasattr(value, "__dict__")
        if is_own and not isinstance(value, type):
            yield vars(value)
        parts = [*vars(value).values()] if is_own else [value]
        yield from [part for part in parts if type(part) is dict and len(part) < 100]  # torch's large ones take long


_PYTHON = (os.path.dirname(os.__file__) + os.sep, *HERE, os.path.dirname(torch.__file__) + os.sep)
_KEEPING = ("tarfile", "bz2")  # they have `open` by other names
_INSTALLED = f"{os.sep}site-packages{os.sep}"


def _is_python(module: Any, installed: bool) -> bool:
    """Whether it is a module in Python, of the script's or `installed`; not Python's own, torch's or this runtime's."""
    file = str(getattr(module, "__file__", None) or "")
    if not isinstance(module, ModuleType) or not file or file.startswith(_PYTHON[1:]):
        return False
    if _INSTALLED in file or module.__name__ in _KEEPING:
        return installed
    return not file.startswith(_PYTHON[0])
