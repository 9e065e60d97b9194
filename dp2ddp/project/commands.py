"""The commands that a project installs: functions that `setup.py`, `setup.cfg` or `pyproject.toml` name. Never run."""

from __future__ import annotations

import ast
import configparser
import posixpath
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KINDS = ("console_scripts", "gui_scripts")
_COMMAND = re.compile(r"\s*([\w.-]+)\s*=\s*([\w.]+)\s*:\s*([\w.]+)")


class Command(NamedTuple):
    """`name = module:function`, as a file in `folder` says it."""

    name: str
    module: str
    function: str
    folder: str


def read(root: Path, paths: Iterable[str]) -> list[Command]:
    """The commands that the project at `root` installs; `paths` are its files, relative to it.

    A file that can't be read, or computes what it installs, names none.
    """
    found = []
    for path in paths:
        folder, name = posixpath.split(path)
        reader = _READERS.get(name)
        if reader is None:
            continue
        try:
            said = list(reader((root / path).read_text("utf-8")))
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError, configparser.Error):
            continue
        for text in said:
            match = _COMMAND.match(text)
            if match is not None:
                found.append(Command(match[1], match[2], match[3], folder))
    return found


def module_file(module: str, folder: str, files: Collection[str]) -> str | None:
    """The file of a module: in `folder`, in `folder/src`, or in the one place in `files` that fits; None elsewhere."""
    ending = module.replace(".", "/")
    for place in (folder, posixpath.join(folder, "src")):
        for name in (f"{ending}.py", f"{ending}/__init__.py"):
            path = posixpath.join(place, name)
            if path in files:
                return path
    fitting = [path for path in files if f"/{path}".endswith((f"/{ending}.py", f"/{ending}/__init__.py"))]
    return fitting[0] if len(fitting) == 1 else None


def _of_toml(text: str) -> Iterator[str]:
    data = tomllib.loads(text)
    project = _table(data, "project")
    poetry = _table(data, "tool", "poetry")
    for table in (_table(project, "scripts"), _table(project, "gui-scripts"), _table(poetry, "scripts")):
        yield from (f"{name}={value}" for name, value in table.items() if isinstance(value, str))


def _table(data: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        inner = data.get(name)
        data = inner if isinstance(inner, dict) else {}
    return data


def _of_cfg(text: str) -> Iterator[str]:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text)
    for kind in _KINDS:
        yield from parser.get("options.entry_points", kind, fallback="").splitlines()


def _of_setup(text: str) -> Iterator[str]:
    """The texts of `entry_points={"console_scripts": [...]}`, be it given by a name, and of an ini text there."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values):
                if isinstance(key, ast.Constant) and key.value in _KINDS:
                    yield from _texts(value)
        elif isinstance(node, ast.keyword) and node.arg == "entry_points":
            yield from (line for text in _texts(node.value) for line in text.splitlines())


def _texts(node: ast.expr) -> Iterator[str]:
    values = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield from value.value.splitlines()


_READERS = {"pyproject.toml": _of_toml, "setup.cfg": _of_cfg, "setup.py": _of_setup}
