"""What a file imports, and which folders it adds to `sys.path`; read, never run."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from dp2ddp.errors import BadInput
from dp2ddp.source import syntax
from dp2ddp.source.nodes import blocks, in_order, last_name

#: Python's own, and what scripts have in their place: `import_class("processor.io.IO")`, `loadmodule("nets." + name)`.
_PICKING = re.compile(r"\w*(?:import|load_?module)\w*(?=\()")
_ADDING = {"append": 0, "insert": 1, "extend": 0}
_HOLE = re.compile(r"[%{]")


class Import(NamedTuple):
    """``import module`` (`name` is None), or ``from [level dots][module] import name``."""

    module: str
    level: int = 0
    name: str | None = None


class Addition(NamedTuple):
    """A folder added to `sys.path`, as the words in that line have it; `first`: before those that are there already."""

    folder: str
    first: bool


@dataclass(frozen=True)
class FileImports:
    """What following imports needs to know of a file.

    Attributes:
        imports: every import, in functions too, and constant ``importlib.import_module(...)``; each once.
        prefixes: of modules that are picked at run time: ``models`` of ``import_module("models." + name)``.
        additions: what it adds to `sys.path`.
        is_python: Python reads it.
    """

    imports: Sequence[Import] = ()
    prefixes: Sequence[str] = ()
    additions: Sequence[Addition] = ()
    is_python: bool = True


@lru_cache(maxsize=4096)
def read(text: str, path: str) -> FileImports:
    """Reads the file at `path`; empty where it is no Python.

    Remembered, since the same texts are asked about for finding scripts and for converting them.
    """
    try:
        tree = syntax.shared(text, path)
    except BadInput:
        return FileImports(is_python=False)
    # Whole trees take long to walk, and few files need it.
    nodes = list(ast.walk(tree)) if "sys.path" in text or _PICKING.search(text) else []
    imports = (each for node in [*chain.from_iterable(blocks(tree)), *nodes] for each in _imports(node))
    return FileImports(
        imports=list(dict.fromkeys(imports)),
        prefixes=list(dict.fromkeys(_prefixes(nodes))),
        additions=[each for node in nodes for each in _additions(node, nodes)],
    )


def _imports(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (Import(node.module or "", node.level, alias.name) for alias in node.names)
    elif isinstance(picked := _picked(node), ast.Constant):
        name = picked.value
        if isinstance(name, str) and name and not name.startswith("."):
            module, dot, last = name.rpartition(".")
            yield Import(module, name=last) if dot else Import(name)  # a module, or a class or function of one


def _prefixes(nodes: Sequence[ast.AST]) -> Iterator[str]:
    given = [picked for picked in map(_picked, nodes) if picked is not None]
    names = {each.id for each in given if isinstance(each, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id in names for t in node.targets):
            given.append(node.value)
    for each in given:
        prefix, dot, _ = _beginning(each).rpartition(".")
        if dot and prefix:
            yield prefix


def _beginning(text: ast.expr) -> str:
    """How a text begins that is put together; empty for a constant, and for what begins with something computed."""
    if isinstance(text, ast.Constant):
        return ""
    first: ast.AST = text
    while not isinstance(first, ast.Constant):
        if isinstance(first, ast.Call):  # `"models.{}".format(name)`
            first = first.func
        parts = list(ast.iter_child_nodes(first))
        if not parts or isinstance(first, (ast.Name, ast.Subscript)):
            return ""
        first = parts[0]
    return _HOLE.split(first.value)[0] if isinstance(first.value, str) else ""


def _picked(node: ast.AST) -> ast.expr | None:
    """What a call imports a module by, where it does."""
    if not (isinstance(node, ast.Call) and node.args and _PICKING.match(f"{last_name(node.func)}(")):
        return None
    return node.args[0]


def _additions(node: ast.AST, file: Sequence[ast.AST]) -> Iterator[Addition]:
    """The folders that a line adds, of which only the constants are read: what else it says leads to a folder above.

    By a mere name it may be any that the file puts together.
    """
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDING:
        place, target, first = _ADDING[node.func.attr], node.func.value, node.func.attr == "insert"
        added = node.args[place : place + 1]
    elif isinstance(node, ast.AugAssign):
        target, first, added = node.target, False, [node.value]
    else:
        return
    if isinstance(target, ast.Attribute) and target.attr == "path" and last_name(target.value) == "sys":
        parts = [part for each in added for part in (each.elts if isinstance(each, (ast.List, ast.Tuple)) else [each])]
        if any(isinstance(part, ast.Name) for part in parts):
            parts += [call for call in file if isinstance(call, ast.Call) and last_name(call.func) == "join"]
        for part in parts:
            words = in_order(n for n in ast.walk(part) if isinstance(n, ast.Constant))
            folder = posixpath.join("", *(n.value.lstrip("/") for n in words if isinstance(n.value, str)))
            if folder:
                yield Addition(posixpath.normpath(folder), first and part in added)
