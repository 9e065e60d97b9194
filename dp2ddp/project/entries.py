"""Which files of a project are scripts that one starts and that wrap a model in `DataParallel`."""

from __future__ import annotations

import ast
import os
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dp2ddp.errors import BadInput
from dp2ddp.project import wrapcalls
from dp2ddp.project.modules import Layout, module_name, stem
from dp2ddp.project.python_files import PythonFiles
from dp2ddp.source import syntax
from dp2ddp.source.depth import with_room
from dp2ddp.source.nodes import is_main_guard

if TYPE_CHECKING:
    from dp2ddp.project.tree import Tree

_IMPORT = re.compile(rb"^[ \t]*(?:from|import)\b[^\n(]*(?:\([^)]*\))?", re.MULTILINE)
_WORD = re.compile(rb"\w+")
_DYNAMIC = re.compile(rb"import_module|__import__|load_?module\(")
_LOOPS = (ast.For, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: What a program does, and a file's trial of itself does not: read a command line, train.
_WORKS = re.compile(rb"argparse|add_argument|sys\.argv|\bclick\b|\bfire\b|hydra|absl|\.backward\(")
_TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py")  # as pytest has it
#: Functions of files that commands start, and the commands.
Started = Mapping[str, Mapping[str, str]]
_SETUPS = ("setup.py", "setup.cfg", "pyproject.toml")
_COMMAND = re.compile(r"""([\w.-]+)\s*=\s*["']?\s*([\w.]+):([\w.]+)""")
_TEST_TOOLS = ("unittest.", "pytest.", "nose.", "absl.testing.", "torch.testing.")


@dataclass(frozen=True)
class Entries:
    """The scripts of a project that are converted, and what was found out about the others.

    Attributes:
        entries: the scripts; those that were found, sorted.
        wraps: the lines of the wraps, for each file that has some.
        unread: the files that name `DataParallel` but can't be read as Python, and why.
        commands: of the entries that are started by functions: these, and the commands that start them.
        tests: the unit tests that come to a wrap, which are no entries.
        unfollowed: lines of files that name `DataParallel` in a way that can't be followed.
    """

    entries: Sequence[str]
    wraps: Mapping[str, Sequence[int]] = field(default_factory=dict)
    unread: Sequence[BadInput] = ()
    commands: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tests: Sequence[str] = ()
    unfollowed: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def functions(self) -> dict[str, list[str]]:
        """The scripts, each with those of its functions that are started from outside."""
        return {path: list(self.commands.get(path, ())) for path in self.entries}

    def hidden(self, converted: Collection[str]) -> Iterator[BadInput]:
        """Files outside of the scripts that were converted, in which a wrap may be hidden."""
        for path, lines in self.unfollowed.items():
            if path not in converted:
                what = "may mean DataParallel, which can't be told without running it"
                todo = "name the class plainly (nn.DataParallel), or check what becomes of this line"
                yield BadInput(path, line=lines[0], what=what, todo=todo)

    def left(self, followed: Collection[str]) -> Iterator[BadInput]:
        """Files with a wrap, no unit tests, outside of the files of all scripts."""
        for path, lines in sorted(self.wraps.items()):
            if path not in followed and path not in self.tests:
                what = "DataParallel is left here, as no script that is started comes to it"
                yield BadInput(path, line=lines[0], what=what, todo=f"if it is used, convert it with --entry {path}")


def choose(names: Sequence[str], tree: Tree, sources: PythonFiles, layout: Layout) -> Entries:
    """The scripts that `--entry` names; those that come to a wrap if it names none.

    Args:
        names: `FILE`, relative to the project or to the current folder, or `module:function`.

    Raises:
        BadInput: there is no such file; or there is something to convert, but no script to begin with.
    """
    installed = started(tree, sources)
    if names:
        return _named(names, installed, sources)
    found = guess(sources, layout, installed)
    if not found.entries and found.wraps:
        path, lines = next(iter(found.wraps.items()))
        test = f", but for the test {found.tests[0]}" if found.tests else ""
        what = f"found no script to start that reaches the DataParallel at {path}:{lines[0]}{test}"
        todo = "name it with --entry FILE, or a function with --entry module:function"
        raise BadInput(str(sources.root), what=what, todo=todo)
    if not found.entries and found.unread:
        raise found.unread[0]
    return found


def _named(names: Sequence[str], installed: Started, sources: PythonFiles) -> Entries:
    found: dict[str, dict[str, str]] = {}
    for name in names:
        path, function = _entry(name, sources)
        starts = found.setdefault(path, {})
        if function:
            call = f"python -c 'from {module_name(path, sources)} import {function}; {function}()'"
            starts[function] = installed.get(path, {}).get(function, call)
    return Entries(list(found), commands={path: starts for path, starts in found.items() if starts})


def _entry(name: str, sources: PythonFiles) -> tuple[str, str]:
    """The file that a name means, and the function, if it names one."""
    path = _file(name, sources)
    if path is not None:
        return path, ""
    module, _, function = name.rpartition(":")
    path = _file(module, sources) or (_of_module(module, "", sources) if module else None)
    if path is not None:
        return path, function
    what = f"no Python file {name!r} in {sources.root}"
    raise BadInput("--entry", what=what, todo="name it by its path in the project, or a function as module:function")


def _of_module(module: str, folder: str, files: Collection[str]) -> str | None:
    """The file of a module: in `folder`, in `folder/src`, or in the one place in `files` that fits; None elsewhere."""
    names = [module.replace(".", "/") + ending for ending in (".py", "/__init__.py")]
    near = [path for place in ("", "src") for name in names if (path := posixpath.join(folder, place, name)) in files]
    fitting = near or [path for path in files if f"/{path}".endswith(tuple(f"/{name}" for name in names))]
    return fitting[0] if near or len(fitting) == 1 else None


def _file(name: str, sources: PythonFiles) -> str | None:
    for place in (sources.root / name, name):
        if os.path.isfile(place):
            path = os.path.relpath(os.path.abspath(place), os.path.abspath(sources.root)).replace(os.sep, "/")
            if path in sources:
                return path
    return None


@with_room
def guess(sources: PythonFiles, layout: Layout, installed: Started | None = None) -> Entries:
    """Finds the scripts that reach a wrap by their imports, and may use it.

    A script has a main guard, or does something at module level and isn't imported by another script, or has a function
    that is one of the commands `installed` with the project. A unit test is none. Files that can't lead to
    `DataParallel` are not parsed.
    """
    return _Guesser(sources, layout).guess(installed or {})


def started(tree: Tree, sources: PythonFiles) -> Started:
    """The functions that the project's installed commands start, and the commands' names, by file.

    They are read off lines `name = module:function` of `setup.py`, `setup.cfg` and `pyproject.toml`. A file that
    computes what it installs names none.
    """
    found: dict[str, dict[str, str]] = {}
    for path in (path for path in tree.files if posixpath.basename(path) in _SETUPS):
        for name, module, function in _COMMAND.findall((tree.root / path).read_text("utf-8", "replace")):
            file = _of_module(module, posixpath.dirname(path), sources)
            if file is not None:
                found.setdefault(file, {})[function] = name
    return found


@with_room
def importing(
    sources: PythonFiles, layout: Layout, changed: Collection[str], known: Collection[str]
) -> dict[str, list[str]]:
    """The other scripts, not among those `known`, that import one of the `changed` files, and which."""
    return _Guesser(sources, layout).importing(changed, known)


class _Guesser:
    def __init__(self, sources: PythonFiles, layout: Layout) -> None:
        self._sources = sources
        self._layout = layout
        self._trees: dict[str, ast.Module | None] = {}
        self._unread: dict[str, BadInput] = {}

    def guess(self, installed: Started) -> Entries:
        named = [path for path in self._sources if wrapcalls.mentions(self._sources.data(path))]
        wraps = self._wraps(named)
        near = set(self._importers(wraps))
        by_command: Started = {path: of for path, of in installed.items() if path in near}
        using, by_command = self._using(wraps, near, by_command)
        tests = [path for path in using if path not in by_command and self._is_test(path)]
        imported = {target for path, files in using.items() if path not in tests for target in files[1:]}
        kept = (path for path in using if path not in imported or path in by_command or self._is_program(path))
        return Entries(
            sorted(path for path in kept if path not in tests),
            wraps,
            [self._unread[path] for path in named if path in self._unread],
            by_command,
            sorted(tests),
            self._unfollowed(named),
        )

    def _using(
        self, wraps: Mapping[str, Sequence[int]], near: Collection[str], by_command: Started
    ) -> tuple[dict[str, list[str]], Started]:
        """The scripts that come to a wrap, with their files, and of their functions those that do by a command."""
        programs = {path: self._layout.reachable(path) for path in sorted(near) if self._tree(path) is not None}
        outside = {path for path, lines in wraps.items() if not self._only_guarded(path, lines)}
        reaching = {p: files for p, files in programs.items() if p in wraps or not outside.isdisjoint(files)}
        imported = {target for path, files in programs.items() for target in files[1:]}
        leading = {path: of for path, of in by_command.items() if path in reaching}
        using = {}
        for path, files in reaching.items():
            # What nobody imports is there to be started, if it does anything.
            is_apart = path not in imported and posixpath.basename(path) != "__init__.py" and not self._is_test(path)
            if path in leading or (is_apart and self._acts(path)) or self._is_script(path):
                using[path] = files
        return using, leading

    def importing(self, changed: Collection[str], known: Collection[str]) -> dict[str, list[str]]:
        others = (path for path in self._importers(changed) if path not in known and path not in changed)
        found = {path: [each for each in self._layout.reachable(path) if each in changed] for path in sorted(others)}
        return {path: files for path, files in found.items() if files and self._is_script(path)}

    def _unfollowed(self, named: Sequence[str]) -> dict[str, list[int]]:
        lines = {
            path: [node.lineno for node in wrapcalls.unfollowed(tree)] for path, tree in self._readable(named).items()
        }
        return {path: found for path, found in lines.items() if found}

    def _wraps(self, named: Sequence[str]) -> dict[str, list[int]]:
        """The lines of the wraps; those of the project's own subclasses may be in files that name them only."""
        trees = self._readable(named)
        classes: frozenset[str] = frozenset()
        while classes != (found := wrapcalls.subclasses(trees.values())):
            classes, marks = found, [name.encode() for name in found]
            naming = (p for p in self._sources if p in trees or any(mark in self._sources.data(p) for mark in marks))
            trees = self._readable(naming)
        lines = {path: wrapcalls.places(tree, classes) for path, tree in trees.items()}
        return {path: numbers for path, numbers in lines.items() if numbers}

    def _readable(self, paths: Iterable[str]) -> dict[str, ast.Module]:
        return {path: tree for path in paths if (tree := self._tree(path)) is not None}

    def _importers(self, wraps: Collection[str]) -> list[str]:
        """The files that may reach one of `wraps`, by the words in their imports; these themselves included."""
        words = {path: _imported_words(self._sources.data(path)) for path in self._sources}
        found = dict.fromkeys(wraps)
        news = {os.fsencode(stem(path)) for path in wraps}
        while news:
            more = [p for p in words if p not in found and (words[p] is None or not news.isdisjoint(words[p] or ()))]
            found.update(dict.fromkeys(more))
            news = {os.fsencode(stem(path)) for path in more}
        return list(found)

    def _is_script(self, path: str) -> bool:
        """Whether the file does something when it is started, be it that it calls its own `main()`."""
        tree = self._tree(path)
        if tree is None:
            return False
        own = {node.name for node in tree.body if isinstance(node, _SCOPES)}
        return self._has_guard(path) or any(_works(node, own) for node in tree.body)

    def _acts(self, path: str) -> bool:
        """Whether the file calls anything at module level, outside of what it defines."""
        tree = self._tree(path)
        statements = [] if tree is None else [node for node in tree.body if not isinstance(node, _SCOPES)]
        return any(isinstance(part, ast.Call) for node in statements for part in ast.walk(node))

    def _is_test(self, path: str) -> bool:
        """Whether the file is a unit test: it has tests, and a tool's name for such a file, or imports one."""
        imports = self._layout.imports(path).imports
        uses_tool = any(f"{each.module}.".startswith(_TEST_TOOLS) for each in imports)
        is_named = _TEST_FILE.fullmatch(posixpath.basename(path)) and not self._is_script(path)
        tree = self._tree(path) if uses_tool or is_named else None
        defined = [] if tree is None else [node for node in ast.walk(tree) if isinstance(node, _SCOPES)]
        return any(node.name.lower().startswith("test") for node in defined)

    def _only_guarded(self, path: str, lines: Sequence[int]) -> bool:
        """Whether all these lines are under the file's main guard, so that they don't run where it is imported."""
        tree = self._tree(path)
        guards = [] if tree is None else [node for node in tree.body if is_main_guard(node)]
        return all(any(g.lineno <= line <= (g.end_lineno or line) for g in guards) for line in lines)

    def _is_program(self, path: str) -> bool:
        """Whether a file that others import is there to be started, too: more than a trial of what it defines."""
        tree = self._tree(path)
        if tree is None or not self._has_guard(path):
            return False
        own = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
        done = [
            n.value for guard in filter(is_main_guard, tree.body) for n in ast.walk(guard) if isinstance(n, ast.Expr)
        ]
        calls = (each.func for each in done if isinstance(each, ast.Call))
        runs_own = any(isinstance(func, ast.Name) and func.id in own for func in calls)  # `main()`
        return runs_own or _WORKS.search(self._sources.data(path)) is not None

    def _has_guard(self, path: str) -> bool:
        tree = self._tree(path)
        return tree is not None and any(is_main_guard(node) for node in tree.body)

    def _tree(self, path: str) -> ast.Module | None:
        if path not in self._trees:
            try:
                self._trees[path] = syntax.shared(self._sources[path], path)
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
    if _DYNAMIC.search(data):
        return None
    return frozenset(word for statement in _IMPORT.findall(data) for word in _WORD.findall(statement))
