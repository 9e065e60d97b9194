"""Read what a script saved whole, without the script, and without running anything that the file names.

`torch.save(model, path)` pickles a reference to the model's class. None is imported here: objects of classes become
placeholders that keep what was in them. What a script wrote may be a copy of a file that it fetched, so a pickle is
trusted with nothing: only what makes tensors, arrays and plain containers is called.
"""

from __future__ import annotations

import functools
import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

#: What is called, or made an object of, when a file says so. None of it runs code, opens files or imports.
_HARMLESS = re.compile(
    r"(builtins|__builtin__)\.(bool|bytearray|bytes|complex|dict|float|frozenset|int|list|object|range|set|slice|str"
    r"|tuple)|collections\.(OrderedDict|defaultdict|deque|Counter)|_codecs\.encode|torch\._utils\._rebuild_\w+"
    r"|torch\.(Size|device|dtype|Tensor|\w+Storage|nn\.parameter\.(Parameter|Buffer)|serialization\._get_layout"
    r"|storage\.(Untyped|Typed)Storage)|numpy\.(_?core\.multiarray\.(_reconstruct|scalar)|ndarray|dtype"
    r"|dtypes\.\w+DType)"
)


def load(path: Path) -> Any:
    """What is in a checkpoint, on the CPU. Raises what `torch.load` raises for a file that is none."""
    # Not weights only, which refuses what the script's own classes are; the reader below takes care.
    reader: Any = SimpleNamespace(Unpickler=_Unpickler, __name__=__name__)
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=reader)


class _Kind(type):
    """The class of a placeholder: of what the script calls `module.name`. A class within it is one, too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(cls.__module__, f"{cls.__qualname__}.{name}")


class Placeholder(list[Any], metaclass=_Kind):
    """An object of a class that isn't here: a list of what was in it, where it was a list or a dictionary.

    Attributes:
        arguments: what it was made from.
        state: what its `__dict__` held, or what its class gave pickle instead.
    """

    arguments: Any
    state: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Placeholder:
        made = super().__new__(cls)
        made.arguments, made.state = [*args, *([kwargs] if kwargs else [])], None
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Pickle calls it where a class reduces to a call."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.append((key, value))

    __hash__ = object.__hash__  # type: ignore[assignment]


@functools.cache
def _placeholder(module: str, name: str) -> Any:
    return _Kind(name.rpartition(".")[2], (Placeholder,), {"__module__": module, "__qualname__": name})


def _attribute(owner: Any, name: str) -> Any:
    """`getattr`, for a class within a class."""
    return getattr(owner, name) if isinstance(owner, _Kind) else _placeholder("builtins", f"getattr.{name}")


def _reconstructed(kind: Any, base: Any, state: Any) -> Any:
    """What `copyreg._reconstructor` makes, which is another way to write down an object."""
    return kind() if isinstance(kind, _Kind) else _placeholder("copyreg", "_reconstructor")(kind, base, state)


_OURS = {
    **{(name, "_reconstructor"): _reconstructed for name in ("copyreg", "copy_reg")},
    **{(name, "getattr"): _attribute for name in ("builtins", "__builtin__")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _OURS:
            return _OURS[module, name]
        kinds = torch.dtype, torch.layout, torch.memory_format
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), kinds)
        if is_dtype or _HARMLESS.fullmatch(f"{module}.{name}"):
            try:
                return super().find_class(module, name)
            except (AttributeError, ImportError):  # of another version
                pass
        return _placeholder(module, name)
