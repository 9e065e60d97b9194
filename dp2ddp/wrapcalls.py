"""Where a file wraps something in `DataParallel`, seen from afar: which files matter, and what is left to convert.

Cheaper and coarser than `analysis`: names are taken at their word, and files are looked at one by one.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence

CLASS = "DataParallel"
FUNCTION = "data_parallel"
_MARKS = (CLASS.encode(), FUNCTION.encode())


def mentions(data: bytes) -> bool:
    """Whether the file with these bytes can have anything to do with `DataParallel`."""
    return any(mark in data for mark in _MARKS)


def subclasses(trees: Iterable[ast.Module]) -> frozenset[str]:
    """The names of the files' own classes that derive from `DataParallel`, be it by way of another one."""
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.bases]
    found: set[str] = set()
    before = -1
    while len(found) != before:
        before = len(found)
        found.update(node.name for node in classes if any(_last(base) in {CLASS, *found} for base in node.bases))
    return frozenset(found)


def find(tree: ast.Module, classes: Collection[str] = ()) -> list[ast.Call]:
    """The calls of `DataParallel`, of `data_parallel`, and of the subclasses named `classes`."""
    nodes = list(ast.walk(tree))
    names = {CLASS, *classes, *_imported_as(nodes)}
    calls = (node for node in nodes if isinstance(node, ast.Call))
    return sorted((call for call in calls if _wraps(call.func, names, classes)), key=lambda call: call.lineno)


def _wraps(func: ast.expr, names: Collection[str], classes: Collection[str]) -> bool:
    if isinstance(func, ast.Name):
        return func.id in names
    if not isinstance(func, ast.Attribute):
        return False
    # Methods of the name `data_parallel` are something else.
    return func.attr == CLASS or func.attr in classes or (func.attr == FUNCTION and _last(func.value) in _MODULES)


def _imported_as(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            yield from (alias.asname or alias.name for alias in node.names if alias.name in (CLASS, FUNCTION))


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


_MODULES = frozenset({"nn", "parallel", FUNCTION})
