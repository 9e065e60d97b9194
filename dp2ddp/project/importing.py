"""What one file imports, which names it binds, and which folders it adds to `sys.path`; read, never run.

Of `sys.path` are understood `insert`, `append`, `extend` and `+=`, and functions of the script that pass a parameter on
to one of these, with folders built from constants, `__file__`, `os.path`, `pathlib` and names that are assigned once.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from dp2ddp.errors import BadInput
from dp2ddp.source import syntax
from dp2ddp.source.nodes import ANY_NAME, last_name, text_pattern

STAR = "*"
#: Python's own, and what scripts have in their place: `import_class("processor.io.IO")`, `loadmodule("nets." + name)`.
_PICKING = re.compile(r"\w*(?:import|load_?module)\w*(?=\()")
#: Stands for the project's root while folders are worked out; no real path begins so.
_ROOT = "/\0"
#: Functions and methods that leave a path what it is, as far as its place in the project goes.
_SAME = frozenset(
    "abspath realpath normpath expandvars str fspath Path PurePath resolve absolute as_posix PosixPath".split()
)
_OWN_FILE = frozenset("getfile getsourcefile getabsfile".split())
_FIXED = {"getcwd": ".", "cwd": ".", "curdir": ".", "pardir": ".."}
_JOINING = frozenset({"join", "joinpath", "+"})
_UP = frozenset({"dirname", "parent", "parents", "split"})
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
        does, parts, times = _taken_apart(node)
        if does in _FIXED or does in _OWN_FILE:
            return _FIXED.get(does, self._own)
        values = [self.value(part) for part in parts]
        known = [value for value in values if value is not None]
        if not known or len(known) != len(values):
            return None
        if does in _UP:
            for _ in range(times):
                known[0] = posixpath.dirname(known[0])
        elif does in _JOINING:
            return "".join(known) if does == "+" else posixpath.join(*known)
        return known[0] if does in _UP or does in _SAME else None

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


def _taken_apart(node: ast.expr) -> tuple[str, list[ast.expr], int]:
    """The name of what an expression does, to which others, and how often."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
        return "+" if isinstance(node.op, ast.Add) else "join", [node.left, node.right], 1
    if isinstance(node, ast.Call):
        # A method such as `path.resolve()` is about what stands before its dot.
        is_method = not node.args and isinstance(node.func, ast.Attribute)
        return last_name(node.func), [node.func.value] if is_method else node.args, 1  # type: ignore[attr-defined]
    if isinstance(node, ast.Attribute):
        return node.attr, [node.value], 1
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and type(node.slice.value) is int:
        does, parts, _ = _taken_apart(node.value)
        if does == "parents" or (does == "split" and node.slice.value == 0):
            return does, parts, node.slice.value + 1
    return "", [], 0


class Import(NamedTuple):
    """``import module`` (`name` is None), or ``from [level dots][module] import name``."""

    module: str
    level: int = 0
    name: str | None = None


@dataclass(frozen=True)
class FileImports:
    """What following imports needs to know of a file.

    Attributes:
        imports: every import, in functions too, and constant ``importlib.import_module(...)``; each once.
        folders: prefixes of modules that are picked at run time: ``"models."`` of ``import_module("models." + name)``.
        additions: what it adds to `sys.path`.
        names: what its own statements bind at module level; not what star imports bring.
        stars: its star imports at module level.
        public: its ``__all__`` where that is a constant, else None.
        is_python: Python reads it.
    """

    imports: Sequence[Import] = ()
    folders: Sequence[str] = ()
    additions: Sequence[Addition] = ()
    names: frozenset[str] = frozenset()
    stars: Sequence[Import] = ()
    public: frozenset[str] | None = None
    is_python: bool = True


@lru_cache(maxsize=4096)
def read(text: str, path: str) -> FileImports:
    """Reads the file at `path` (posix, relative to the project's root); empty where it is no Python.

    Remembered, since the same texts are asked about for finding scripts and for converting them.
    """
    try:
        tree = syntax.shared(text, path)
    except BadInput:
        return FileImports(is_python=False)
    statements = list(_statements(tree.body))
    # Whole trees take long to walk, and few files need it.
    nodes = list(ast.walk(tree)) if _PICKING.search(text) else []
    bound = _Bound()
    bound.visit(tree.body)
    return FileImports(
        imports=list(dict.fromkeys(each for node in [*statements, *nodes] for each in _imports(node))),
        folders=list(dict.fromkeys(_folders(nodes))),
        additions=additions(tree, path) if "sys.path" in text else (),
        names=frozenset(bound.names),
        stars=[each for node in bound.stars for each in _imports(node)],
        public=_public(tree),
    )


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All statements in `body`, and in the statements there."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, None)
            # The body of a lambda or a conditional expression is no list, and never gets here as a statement.
            if isinstance(inner, list):
                yield from _statements(inner)


def _imports(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (Import(node.module or "", node.level, alias.name) for alias in node.names)
    elif isinstance(node, ast.Call) and _picks_module(node) and isinstance(node.args[0], ast.Constant):
        name = node.args[0].value
        if isinstance(name, str) and name and not name.startswith("."):
            yield Import(name)
            module, dot, last = name.rpartition(".")
            if dot:  # a class or function of a module
                yield Import(module, name=last)


def _folders(nodes: Sequence[ast.AST]) -> Iterator[str]:
    given = [node.args[0] for node in nodes if isinstance(node, ast.Call) and _picks_module(node)]
    names = {each.id for each in given if isinstance(each, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id in names for t in node.targets):
            given.append(node.value)
    for each in given:
        prefix, dot, _ = _beginning(each).rpartition(".")
        if dot and prefix:
            yield prefix


def _beginning(text: ast.expr) -> str:
    """How a text begins that is put together. Empty for a constant."""
    known, computed, _ = text_pattern(text).partition(ANY_NAME)
    return re.sub(r"\\(.)", r"\1", known) if computed else ""


def _picks_module(node: ast.Call) -> bool:
    return bool(node.args) and _PICKING.match(f"{last_name(node.func)}(") is not None


def _public(tree: ast.Module) -> frozenset[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            if isinstance(node.value, (ast.List, ast.Tuple)):
                constants = (each.value for each in node.value.elts if isinstance(each, ast.Constant))
                return frozenset(each for each in constants if isinstance(each, str))
            return None
    return None


@dataclass
class _Bound:
    """The names that statements at module level bind, also those under `if`, `try`, `with` and loops."""

    names: set[str] = field(default_factory=set)
    stars: list[ast.ImportFrom] = field(default_factory=list)

    def visit(self, body: Sequence[ast.AST]) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                self.names.add(node.name)
            elif isinstance(node, ast.Import):
                self.names.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                self._from(node)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.names.add(node.id)
            else:
                self.visit(list(ast.iter_child_nodes(node)))

    def _from(self, node: ast.ImportFrom) -> None:
        if node.names[0].name == STAR:
            self.stars.append(node)
            return
        for alias in node.names:
            # `from . import x` in a package binds its submodule x: the very thing that `from package import x` means.
            if alias.asname or not (node.level == 1 and not node.module):
                self.names.add(alias.asname or alias.name)
