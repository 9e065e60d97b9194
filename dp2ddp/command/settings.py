"""`[tool.dp2ddp.functions]` in `pyproject.toml`: functions of libraries that the catalogue doesn't have."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dp2ddp.analysis.catalogue import entry
from dp2ddp.errors import BadInput

FILE = "pyproject.toml"
TOOL = "dp2ddp"
_FUNCTIONS = "functions"


def functions(inputs: Iterable[str]) -> tuple[str, ...]:
    """What functions do, each as `name=what it does`: by the nearest file upwards of each input that speaks of dp2ddp.

    Raises:
        BadInput: a file is no TOML, or says what can't be read.
    """
    places = (Path(os.path.abspath("." if name in ("", "-") else name)) for name in inputs)
    files = dict.fromkeys(filter(None, map(_nearest, places)))
    return tuple(each for file in files for each in _read(file))


def _nearest(place: Path) -> Path | None:
    for folder in (place, *place.parents):
        path = folder / FILE
        if path.is_file() and TOOL.encode() in path.read_bytes() and TOOL in _parsed(path).get("tool", {}):
            return path
    return None


def _read(path: Path) -> Iterator[str]:
    name, table = os.path.relpath(path), _parsed(path)["tool"][TOOL]
    given = table.get(_FUNCTIONS, {}) if isinstance(table, dict) else None
    if not isinstance(given, dict) or table.keys() - {_FUNCTIONS}:
        todo = "options stand on the command line"
        raise BadInput(name, what=f"[tool.{TOOL}] has one table, [tool.{TOOL}.{_FUNCTIONS}]", todo=todo)
    for function, does in given.items():
        try:
            entry(f"{function}={does}")
        except ValueError as error:
            raise BadInput(name, what=str(error)) from None
        yield f"{function}={does}"


def _parsed(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        parsed: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise BadInput(os.path.relpath(path), what=f"no TOML: {error}") from None
    return parsed
