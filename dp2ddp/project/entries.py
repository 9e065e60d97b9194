"""Which files of a project are scripts that one starts and that wrap a model in `DataParallel`."""

from __future__ import annotations

import ast
import os
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dp2ddp.errors import BadInput
from dp2ddp.project import wrapcalls
from dp2ddp.project.modules import Layout
from dp2ddp.project.python_files import PythonFiles
from dp2ddp.source import syntax
from dp2ddp.source.nodes import is_main_guard

_LOOPS = (ast.For, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: What a program does, and a file's trial of itself does not: read a command line, train.
_WORKS = re.compile(rb"argparse|add_argument|sys\.argv|(?:import|from) (?:click|fire|hydra|absl)|\.backward\(")
_TEST_FILE = re.compile(r"test_.*\.py|.*_test\.py")  # as pytest has it
_TEST_TOOLS = ("unittest.", "pytest.", "nose.", "absl.testing.", "torch.testing.")


@dataclass(frozen=True)
class Entries:
    """The scripts of a project that are converted, and what was found out about the others.

    Attributes:
        entries: the scripts; those that were found, sorted.
        wraps: the lines of the wraps, for each file that has some.
        unread: the files that name `DataParallel` but can't be read as Python, and why; all such files where no script
            is found.
        tests: the unit tests that come to a wrap, which are no entries.
    """

    entries: Sequence[str]
    wraps: Mapping[str, Sequence[int]] = field(default_factory=dict)
    unread: Sequence[BadInput] = ()
    tests: Sequence[str] = ()

    def left(self, followed: Collection[str]) -> Iterator[BadInput]:
        """Files with a wrap, no unit tests, outside of the files of all scripts."""
        for path, lines in sorted(self.wraps.items()):
            if path not in followed and path not in self.tests:
                what = "DataParallel is left here, as no script that is started comes to it"
                yield BadInput(path, line=lines[0], what=what, todo=f"if it is used, convert it with --entry {path}")


def choose(names: Sequence[str], sources: PythonFiles, layout: Layout) -> Entries:
    """The scripts that `--entry` names; those that come to a wrap if it names none.

    Args:
        names: paths, relative to the project or to the current folder.

    Raises:
        BadInput: there is no such file; or there is something to convert, but no script to begin with.
    """
    if names:
        return Entries(list(dict.fromkeys(_entry(name, sources) for name in names)))
    found = guess(sources, layout)
    if not found.entries and found.wraps:
        path, lines = next(iter(found.wraps.items()))
        test = f", but for the test {found.tests[0]}" if found.tests else ""
        what = f"found no script to start that reaches the DataParallel at {path}:{lines[0]}{test}"
        broken = f"; it may be one that is no Python: {'; '.join(map(str, found.unread[:3]))}" if found.unread else ""
        raise BadInput(str(sources.root), what=what, todo=f"name it with --entry FILE{broken}")
    if not found.entries and found.unread:
        raise found.unread[0]
    return found


def _entry(name: str, sources: PythonFiles) -> str:
    for place in (sources.root / name, name):
        path = os.path.relpath(os.path.abspath(place), os.path.abspath(sources.root)).replace(os.sep, "/")
        if path in sources:
            return path
    what = f"no Python file {name!r} in {sources.root}"
    raise BadInput("--entry", what=what, todo="name it by its path in the project")


def guess(sources: PythonFiles, layout: Layout) -> Entries:
    """Finds the scripts that reach a wrap by their imports, and may use it.

    A script has a main guard, or does something at module level and isn't imported by another script. A unit test is
    none.
    """
    return _Guesser(sources, layout).guess()


class _Guesser:
    def __init__(self, sources: PythonFiles, layout: Layout) -> None:
        self._sources = sources
        self._layout = layout
        self._trees: dict[str, ast.Module | None] = {}
        self._unread: dict[str, BadInput] = {}

    def guess(self) -> Entries:
        named = [path for path in self._sources if wrapcalls.mentions(self._sources.data(path))]
        wraps = self._wraps(named)
        using = self._using(wraps) if wraps else {}
        tests = [path for path in using if self._is_test(path)]
        imported = {target for path, files in using.items() if path not in tests for target in files[1:]}
        kept = (path for path in using if path not in imported or self._is_program(path))
        entries = sorted(path for path in kept if path not in tests)
        unread = [error for path, error in self._unread.items() if path in named or not entries]
        return Entries(entries, wraps, unread, sorted(tests))

    def _using(self, wraps: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
        """The scripts that come to a wrap, with their files."""
        programs = {path: self._layout.reachable(path) for path in self._sources if self._tree(path) is not None}
        outside = {path for path, lines in wraps.items() if not self._only_guarded(path, lines)}
        imported = {target for files in programs.values() for target in files[1:]}
        using = {}
        for path, files in programs.items():
            # (A package's own file is there to be imported, whoever does.)
            if posixpath.basename(path) == "__init__.py" or (path not in wraps and outside.isdisjoint(files)):
                continue
            # What nobody imports is there to be started, if it does anything.
            is_apart = path not in imported and not self._is_test(path)
            is_main = posixpath.basename(path) == "__main__.py"  # also where an installed command calls its function
            if self._is_script(path) or (is_apart and (is_main or self._acts(path))):
                using[path] = files
        return using

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

    def _is_script(self, path: str) -> bool:
        """Whether the file does something when it is started, be it that it calls its own `main()`."""
        tree = self._tree(path)
        if tree is None:
            return False
        own = {node.name for node in tree.body if isinstance(node, _SCOPES)}
        return any(is_main_guard(node) or _works(node, own) for node in tree.body)

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

    def _guards(self, path: str) -> list[ast.stmt]:
        tree = self._tree(path)
        return [] if tree is None else [node for node in tree.body if is_main_guard(node)]

    def _only_guarded(self, path: str, lines: Sequence[int]) -> bool:
        """Whether all these lines are under the file's main guard, so that they don't run where it is imported."""
        return all(any(g.lineno <= n <= (g.end_lineno or n) for g in self._guards(path)) for n in lines)

    def _is_program(self, path: str) -> bool:
        """Whether a file that others import is there to be started, too: more than a trial of what it defines."""
        tree, guards = self._tree(path), self._guards(path)
        if tree is None or not guards:
            return False
        own = {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
        done = [n.value for guard in guards for n in ast.walk(guard) if isinstance(n, ast.Expr)]
        calls = (each.func for each in done if isinstance(each, ast.Call))
        runs_own = any(isinstance(func, ast.Name) and func.id in own for func in calls)  # `main()`
        return runs_own or _WORKS.search(self._sources.data(path)) is not None

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
    return bool(wrapcalls.places(node))
