"""The functions of libraries that need an edit, by their qualified names: `catalogue.toml`, and the user's settings."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

#: What a function may do.
DEEDS = frozenset({"writes", "opens", "reads", "shows", "reports", "stores", "names", "seeds"})
#: What rank 0 does alone.
MAIN_ONLY = ("writes", "shows", "reports")
_NAME = re.compile(r"[\w*]+(\.[\w*]+)*")


class Catalogue:
    """What is known of libraries.

    Args:
        added: what the user adds, each as `name=what it does`. It counts before what is known anyway.

    Raises:
        ValueError: one of `added` can't be read; says why.
    """

    def __init__(self, added: Iterable[str] = ()) -> None:
        functions = {**_known()["functions"], **dict(map(entry, added))}
        #: Names of methods that rank 0 alone calls, whatever they belong to.
        self.methods = frozenset(_known()["methods"])
        self._exact = {name: does for name, does in functions.items() if "*" not in name}
        self._patterns = [(name, does) for name, does in functions.items() if "*" in name]
        self._found: dict[str, str | None] = {}

    def does(self, path: str | None, *deeds: str) -> bool:
        """Whether the function of this qualified name does one of these."""
        if path is not None and path not in self._found:
            found = next((does for name, does in self._patterns if fnmatchcase(path, name)), None)
            # A copy of a library may lie in a package: `lib.visdom.Visdom`.
            self._found[path] = self._exact.get(path) or found or self._exact.get(".".join(path.split(".")[-2:]))
        return path is not None and self._found[path] in deeds


def entry(text: str) -> tuple[str, str]:
    """The name and the deed of a text such as `mylib.dump=writes`.

    Raises:
        ValueError: it is none.
    """
    name, _, does = text.partition("=")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a function, as in 'package.module.function'")
    if does not in DEEDS:
        raise ValueError(f"{does!r} is nothing that a function does: {', '.join(sorted(DEEDS))}")
    return name, does


@cache
def _known() -> dict[str, dict[str, str]]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {table: dict(entry(f"{n}={does}") for n, does in given.items()) for table, given in tables.items()}
