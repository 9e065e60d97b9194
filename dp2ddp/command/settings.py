"""`[tool.dp2ddp.functions]` in `pyproject.toml`: functions of libraries that the catalogue doesn't have."""

from __future__ import annotations

import os
import re
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
        BadInput: a file is no TOML, or says what can't be read; names the line.
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
    table = _parsed(path)["tool"][TOOL]
    if not isinstance(table, dict):
        raise _error(path, TOOL, "`tool.dp2ddp` must be a table")
    for key in table:
        if key != _FUNCTIONS:
            raise _error(
                path, key, f"no setting {key!r}", f"options stand on the command line, [tool.{TOOL}.functions] here"
            )
    given = table.get(_FUNCTIONS, {})
    if not isinstance(given, dict):
        raise _error(path, _FUNCTIONS, "'functions' must be a table")
    for name, does in given.items():
        try:
            entry(f"{name}={does}")
        except ValueError as error:
            raise _error(path, name, str(error)) from None
        yield f"{name}={does}"


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


def _error(path: Path, word: str, what: str, todo: str = "") -> BadInput:
    """An error about the line of a file that says a word."""
    lines = path.read_text("utf-8").split("\n")
    said = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
    line = next((number for number, text in enumerate(lines, 1) if said.search(text)), None)
    return BadInput(os.path.relpath(path), line=line, what=what, todo=todo)
