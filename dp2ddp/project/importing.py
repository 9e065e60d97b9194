"""What one file imports, which names it binds, and which folders it adds to `sys.path`; read, never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from dp2ddp.errors import BadInput
from dp2ddp.project.searchpath import Addition, additions
from dp2ddp.source import syntax

STAR = "*"
#: Python's own, and what scripts have in their place: `import_class("processor.io.IO")`.
_PICKING = re.compile(r"\w*import\w*(?=\()")


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
    """How a text begins that is put together: by `+`, `%`, `format()` or as an f-string. Empty for a constant."""
    start, until = text, ""
    while isinstance(start, ast.BinOp) and isinstance(start.op, (ast.Add, ast.Mod)):
        until = "%" if isinstance(start.op, ast.Mod) else until
        start = start.left
    if isinstance(start, ast.Call) and isinstance(start.func, ast.Attribute) and start.func.attr == "format":
        start, until = start.func.value, "{"
    if isinstance(start, ast.JoinedStr) and start.values:
        start = start.values[0]
    known = start is not text and isinstance(start, ast.Constant) and isinstance(start.value, str)
    constant = str(start.value) if known and isinstance(start, ast.Constant) else ""
    return constant.partition(until)[0] if until else constant


def _picks_module(node: ast.Call) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return "import" in name and bool(node.args)


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
