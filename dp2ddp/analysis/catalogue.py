"""What functions of libraries do, by their qualified names: `catalogue.toml`, and what the user's settings add."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_DEEDS = frozenset(
    "writes opens changes saves reads runs shows reports fetches asks lists own paths seeds temporary memory".split()
)
_MARKS = frozenset("native result looks stays".split())
_FILE = re.compile(r"(\d+):(\w+)")
_MODE = re.compile(r"mode:(\d+)")
_NAME = re.compile(r"[\w*]+(\.[\w*]+)*")


class Function(NamedTuple):
    """What a function does.

    Attributes:
        does: one of the deeds that the catalogue lists.
        file: the position and the name of the argument that names a file, if there is one.
        mode: the position of the mode by which it opens a file.
        marks: more about it.
    """

    does: str
    file: tuple[int, str] | None = None
    mode: int = 1
    marks: frozenset[str] = frozenset()


class Catalogue:
    """The functions of libraries that are known.

    Args:
        added: what the user adds, each as `name=what it does`. It counts before what is known anyway.

    Raises:
        ValueError: one of `added` can't be read; says why.
    """

    def __init__(self, added: Iterable[str] = ()) -> None:
        own = dict(map(entry, added))
        functions = {**own, **{name: function for name, function in _known()[0].items() if name not in own}}
        self._exact = {name: function for name, function in functions.items() if "*" not in name}
        self._patterns = [(name, function) for name, function in functions.items() if "*" in name]
        #: Methods that write a file, by the package that makes their objects.
        self.methods = _known()[1]

    def of(self, path: str | None) -> Function | None:
        """What the function of this qualified name does; None where that isn't known."""
        if path is None or path in self._exact:
            return self._exact.get(path or "")
        return next((function for pattern, function in self._patterns if fnmatchcase(path, pattern)), None)

    def does(self, path: str | None, *deeds: str) -> bool:
        """Whether the function of this qualified name does one of these."""
        function = self.of(path)
        return function is not None and function.does in deeds


def entry(text: str) -> tuple[str, Function]:
    """The name and the function of a text such as `mylib.dump=writes 1:path native`.

    Raises:
        ValueError: it is none.
    """
    name, _, deeds = text.partition("=")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a function, as in 'package.module.function'")
    return name, _function(deeds)


def _function(text: str) -> Function:
    does, *more = text.split() or [""]
    if does not in _DEEDS:
        raise ValueError(f"{does!r} is nothing that a function does: {', '.join(sorted(_DEEDS))}")
    file, mode, marks = None, 1, set()
    for word in more:
        if _MODE.fullmatch(word):
            mode = int(word.partition(":")[2])
        elif _FILE.fullmatch(word):
            position, _, keyword = word.partition(":")
            file = int(position), keyword
        elif word in _MARKS:
            marks.add(word)
        else:
            known = ", ".join(sorted(_MARKS))
            raise ValueError(f"{word!r} is neither the argument that names the file (1:path) nor one of {known}")
    return Function(does, file, mode, frozenset(marks))


@cache
def libraries() -> dict[str, frozenset[str]]:
    """The functions and classes that libraries have at their top, by the library's name."""
    names = [name.split(".") for name in _known()[0] if name.count(".") == 1 and "*" not in name]
    return {library: frozenset(name for each, name in names if each == library) for library, _ in names}


@cache
def _known() -> tuple[dict[str, Function], dict[str, frozenset[str]]]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    tables: dict[str, dict[str, Any]] = tomllib.loads(text)
    functions = {name: _function(deeds) for name, deeds in tables["functions"].items()}
    return functions, {package: frozenset(methods.split()) for package, methods in tables["methods"].items()}
