"""The folders that a script adds to `sys.path`, worked out from its source: nothing is run.

Understood are `sys.path.insert`, `append`, `extend` and `+=`, and functions of the script that pass a parameter on to
one of these, with folders built from constants, `__file__`, `os.path`, `pathlib` and names that are assigned once.
"""

from __future__ import annotations

import ast
import posixpath
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: Stands for the project's root while folders are worked out; no real path begins so.
_ROOT = "/\0"
#: Functions and methods that leave a path what it is, as far as its place in the project goes.
_SAME = frozenset(
    "abspath realpath normpath expandvars str fspath Path PurePath resolve absolute as_posix PosixPath".split()
)
_OWN_FILE = frozenset("getfile getsourcefile getabsfile".split())
_HERE = frozenset("getcwd cwd".split())
_ADDING = {"append": 0, "insert": 1, "extend": 0}


@dataclass(frozen=True)
class Addition:
    """A folder added to `sys.path`.

    Attributes:
        folder: relative to the project's root if `anchored`, else to whatever folder the script is started in.
        anchored: the script derives it from its own `__file__`.
        first: it goes before the folders that are there already.
    """

    folder: str
    anchored: bool
    first: bool


def additions(tree: ast.Module, path: str) -> list[Addition]:
    """The folders that the file at `path` (posix, relative to the project's root) adds, in the order of the source.

    What can't be worked out, and folders outside the project, are left out.
    """
    nodes = list(ast.walk(tree))
    paths = _Paths(nodes, path)
    found = []
    for node, first in [*_added(nodes), *_added_by_functions(nodes)]:
        folder = paths.value(node)
        addition = None if folder is None else _addition(folder, first)
        if addition is not None:
            found.append((node.lineno, addition))
    return [addition for _, addition in sorted(found, key=lambda each: each[0])]


def _addition(folder: str, first: bool) -> Addition | None:
    plain = posixpath.normpath(folder)
    if plain == _ROOT or plain.startswith(f"{_ROOT}/"):
        return Addition(plain[len(_ROOT) + 1 :], True, first)
    return None if plain.startswith("/") else Addition(plain, False, first)


def _added(nodes: Sequence[ast.AST]) -> Iterator[tuple[ast.expr, bool]]:
    """What is added to `sys.path`, and whether it goes first."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _is_path(node.func.value):
            place = _ADDING.get(node.func.attr)
            if place is None or len(node.args) <= place:
                continue
            first = node.func.attr == "insert"
            yield from ((each, first) for each in _elements(node.args[place]))
        elif isinstance(node, ast.AugAssign) and _is_path(node.target):
            yield from ((each, False) for each in _elements(node.value))


def _added_by_functions(nodes: Sequence[ast.AST]) -> Iterator[tuple[ast.expr, bool]]:
    """What is handed to a function of the file that adds its parameter."""
    adders: dict[str, tuple[int, bool]] = {}
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parameters = [argument.arg for argument in node.args.args]
            for value, first in _added(list(ast.walk(node))):
                if isinstance(value, ast.Name) and value.id in parameters:
                    adders[node.name] = parameters.index(value.id), first
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in adders:
            index, first = adders[node.func.id]
            if index < len(node.args):
                yield node.args[index], first


def _elements(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, (ast.List, ast.Tuple)) else [node]


def _is_path(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "path"
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
    )


class _Paths:
    """Works out expressions that build a path."""

    def __init__(self, nodes: Sequence[ast.AST], path: str) -> None:
        self._own = f"{_ROOT}/{path}"
        assigned = [
            (node.targets[0].id, node.value)
            for node in nodes
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        ]
        times = Counter(name for name, _ in assigned)
        self._names = {name: value for name, value in assigned if times[name] == 1}
        self._open: set[str] = set()

    def value(self, node: ast.expr) -> str | None:
        """The path, beginning with the mark of the project's root if it is known; None where it can't be told."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            return self._name(node.id)
        if isinstance(node, ast.BinOp):
            return self._joined(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        return self._item(node) if isinstance(node, ast.Subscript) else None

    def _name(self, name: str) -> str | None:
        if name == "__file__":
            return self._own
        if name not in self._names or name in self._open:
            return None
        self._open.add(name)
        try:
            return self.value(self._names[name])
        finally:
            self._open.discard(name)

    def _joined(self, node: ast.BinOp) -> str | None:
        left, right = self.value(node.left), self.value(node.right)
        if left is None or right is None:
            return None
        if isinstance(node.op, ast.Add):
            return left + right
        return posixpath.join(left, right) if isinstance(node.op, ast.Div) else None

    def _call(self, node: ast.Call) -> str | None:
        name = _last_name(node.func)
        if name in _HERE:
            return "."
        if name in _OWN_FILE:
            return self._own
        # A method such as `path.resolve()` is about what stands before its dot.
        given = node.args
        if not given and isinstance(node.func, ast.Attribute):
            given = [node.func.value]
        values = [self.value(argument) for argument in given]
        known = [value for value in values if value is not None]
        if not known or len(known) != len(values):
            return None
        if name in ("join", "joinpath"):
            return posixpath.join(*known)
        if name == "dirname":
            return posixpath.dirname(known[0])
        return known[0] if name in _SAME else None

    def _attribute(self, node: ast.Attribute) -> str | None:
        if node.attr in ("curdir", "pardir"):
            return "." if node.attr == "curdir" else ".."
        folder = self.value(node.value) if node.attr == "parent" else None
        return None if folder is None else posixpath.dirname(folder)

    def _item(self, node: ast.Subscript) -> str | None:
        """`path.parents[n]` and `os.path.split(path)[0]`."""
        index = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if not isinstance(index, int) or index < 0:
            return None
        if isinstance(node.value, ast.Attribute) and node.value.attr == "parents":
            folder, steps = self.value(node.value.value), index + 1
        elif isinstance(node.value, ast.Call) and _last_name(node.value.func) == "split" and index == 0:
            folder, steps = self.value(node.value.args[0]) if node.value.args else None, 1
        else:
            return None
        for _ in range(steps):
            folder = None if folder is None else posixpath.dirname(folder)
        return folder


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
