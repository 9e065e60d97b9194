"""Which files of a project are scripts that one starts and that wrap a model in `DataParallel`."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dp2ddp import syntax, wrapcalls
from dp2ddp.analysis.source import is_main_guard
from dp2ddp.errors import BadInput
from dp2ddp.modules import Layout
from dp2ddp.sources import Sources
from dp2ddp.uses import Uses

_IMPORT = re.compile(rb"^[ \t]*(?:from|import)\b[^\n(]*(?:\([^)]*\))?", re.MULTILINE)
_WORD = re.compile(rb"\w+")
_DYNAMIC = (b"import_module", b"__import__")
_LOOPS = (ast.For, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Guess:
    """What was found out about a project's scripts.

    Attributes:
        entries: the scripts, sorted.
        wraps: the lines of the wraps, for each file that has some.
        unread: the files that name `DataParallel` but can't be read as Python, and why.
    """

    entries: Sequence[str]
    wraps: Mapping[str, Sequence[int]]
    unread: Sequence[BadInput]


def guess(sources: Sources, layout: Layout) -> Guess:
    """Finds the scripts that reach a wrap by their imports, and may use it.

    A script has a main guard, or does its work at module level and isn't imported by another script. Files that can't
    lead to `DataParallel` are not parsed.
    """
    return _Guesser(sources, layout).guess()


class _Guesser:
    def __init__(self, sources: Sources, layout: Layout) -> None:
        self._sources = sources
        self._layout = layout
        self._trees: dict[str, ast.Module | None] = {}
        self._unread: dict[str, BadInput] = {}

    def guess(self) -> Guess:
        named = [path for path in self._sources if wrapcalls.mentions(self._sources.data(path))]
        wraps = self._wraps(named)
        scripts = [path for path in self._importers(wraps) if self._is_script(path)]
        programs = {path: self._layout.reachable(path) for path in scripts}
        reaching = {path: files for path, files in programs.items() if not wraps.keys().isdisjoint(files)}
        # A script's own wraps are its own business.
        paths = {path for script, files in reaching.items() for path in files if script not in wraps}
        uses = Uses({path: tree for path in paths if (tree := self._tree(path)) is not None}, wraps)
        using = {path: files for path, files in reaching.items() if path in wraps or uses.wraps(path, files)}
        imported = {target for files in using.values() for target in files[1:]}
        entries = [path for path in using if path not in imported or self._has_guard(path)]
        return Guess(sorted(entries), wraps, [self._unread[path] for path in named if path in self._unread])

    def _wraps(self, named: Sequence[str]) -> dict[str, list[int]]:
        """The lines of the wraps; those of the project's own subclasses may be in files that name them only."""
        trees = self._readable(named)
        classes: frozenset[str] = frozenset()
        while classes != (found := wrapcalls.subclasses(trees.values())):
            classes, marks = found, [name.encode() for name in found]
            naming = (p for p in self._sources if p in trees or any(mark in self._sources.data(p) for mark in marks))
            trees = self._readable(naming)
        lines = {path: [call.lineno for call in wrapcalls.find(tree, classes)] for path, tree in trees.items()}
        return {path: numbers for path, numbers in lines.items() if numbers}

    def _readable(self, paths: Iterable[str]) -> dict[str, ast.Module]:
        return {path: tree for path in paths if (tree := self._tree(path)) is not None}

    def _importers(self, wraps: Collection[str]) -> list[str]:
        """The files that may reach one of `wraps`, by the words in their imports; these themselves included."""
        words = {path: _imported_words(self._sources.data(path)) for path in self._sources}
        found = dict.fromkeys(wraps)
        news = {_module_name(path) for path in wraps}
        while news:
            more = [p for p in words if p not in found and (words[p] is None or not news.isdisjoint(words[p] or ()))]
            found.update(dict.fromkeys(more))
            news = {_module_name(path) for path in more}
        return list(found)

    def _is_script(self, path: str) -> bool:
        """Whether the file does something when it is started, be it that it calls its own `main()`."""
        tree = self._tree(path)
        if tree is None:
            return False
        own = {node.name for node in tree.body if isinstance(node, _SCOPES)}
        return self._has_guard(path) or any(_works(node, own) for node in tree.body)

    def _has_guard(self, path: str) -> bool:
        tree = self._tree(path)
        return tree is not None and any(is_main_guard(node) for node in tree.body)

    def _tree(self, path: str) -> ast.Module | None:
        if path not in self._trees:
            try:
                self._trees[path] = syntax.parse_old(self._sources[path], path)
            except BadInput as error:
                self._trees[path] = None
                self._unread[path] = error
        return self._trees[path]


def _works(node: ast.stmt, own: Collection[str]) -> bool:
    """Whether a statement at module level does something: a loop, a wrap, a call of the file's own function."""
    if isinstance(node, _SCOPES):
        return False
    for part in ast.walk(node):
        if isinstance(part, _LOOPS) and any(isinstance(each, ast.Call) for each in ast.walk(part)):
            return True
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in own:
            return True
    return bool(wrapcalls.find(ast.Module([node], [])))


def _imported_words(data: bytes) -> frozenset[bytes] | None:
    """All words in the file's import statements; None where modules are picked by name at run time."""
    if any(mark in data for mark in _DYNAMIC):
        return None
    return frozenset(word for statement in _IMPORT.findall(data) for word in _WORD.findall(statement))


def _module_name(path: str) -> bytes:
    folder, name = posixpath.split(path)
    stem = posixpath.splitext(name)[0]
    return (posixpath.basename(folder) if stem == "__init__" else stem).encode()
