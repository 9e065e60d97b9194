"""Read what a script saved whole, without the script: its classes become placeholders that keep what was in them.

`torch.save(model, path)` pickles a reference to the model's class, which lives in the script (`__main__`) or in a
module beside it. Neither is ever imported here.
"""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

# Of these packages the classes are taken as they are; a checkpoint's tensors and containers need no others.
_KNOWN = {"builtins", "collections", "copyreg", "_codecs", "torch", "numpy"}
_KNOWN |= {"__builtin__", "copy_reg"}  # what pickle calls them in its older protocols


def load(path: Path) -> Any:
    """What is in a checkpoint, on the CPU. Raises what `torch.load` raises for a file that is none."""
    # Not weights only: these are files that the user's own scripts have just written.
    reader: Any = SimpleNamespace(Unpickler=_Unpickler, load=pickle.load, __name__=__name__)
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=reader)


class _Kind(type):
    """The class of a placeholder: of what the script calls `module.name`.

    What is asked of it (a nested class, a function of the class) is a placeholder, too.
    """

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(cls.__module__, f"{cls.__qualname__}.{name}")


class Placeholder(metaclass=_Kind):
    """An object of a class that isn't here.

    Attributes:
        arguments: what it was made from.
        state: what its `__dict__` held, or what its class gave pickle instead.
        items: what was in it, where it is a list, a set or a dictionary.
    """

    arguments: Any
    state: Any
    items: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Placeholder:
        made = super().__new__(cls)
        made.__dict__.update(arguments=[*args, *([kwargs] if kwargs else [])], state=None, items=[])
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Pickle calls it where a class reduces to a call."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def append(self, value: Any) -> None:
        """An element of a list."""
        self.items.append(value)

    def extend(self, values: Any) -> None:
        """Elements of a list."""
        self.items.extend(values)


@functools.cache
def _placeholder(module: str, name: str) -> Any:
    return _Kind(name.rpartition(".")[2], (Placeholder,), {"__module__": module, "__qualname__": name})


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in _KNOWN:
            return _placeholder(module, name)
        try:
            return super().find_class(module, name)
        except (AttributeError, ImportError):  # of another version
            return _placeholder(module, name)
