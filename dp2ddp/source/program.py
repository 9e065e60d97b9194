"""A parsed program: the text of its files, their syntax trees, and where each node stands in both."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Callable, Optional, Union

from dp2ddp.source import syntax
from dp2ddp.source.nodes import blocks, in_order
from dp2ddp.source.spans import Position, Span, in_brief, in_characters, text_at

FunctionNode = Union[ast.FunctionDef, ast.AsyncFunctionDef]
ScopeNode = Union[ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda]
_BRIEF = 60
SCOPES = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, eq=False)
class File:
    """One file of a program.

    Attributes:
        name: its path, as messages have it.
        text: its source.
        tree: its syntax tree, the line numbers counted over the whole program.
        before: how many lines of other files come before its own.
        renamed: where `text` says `non_blocking=` in the place of `async=`.
    """

    name: str
    text: str
    tree: ast.Module
    before: int = 0
    renamed: Sequence[Position] = ()

    @cached_property
    def lines(self) -> list[str]:
        """The source's lines as `ast` counts them (form feeds and the like don't end a line)."""
        return self.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


#: Finds the file that an import means: importing file, module, level (dots) -> name of a file, None for others.
Resolve = Callable[[str, str, int], Optional[str]]


@dataclass(eq=False)
class ParsedProgram:
    """A program: one script, or a project's scripts and what they import from each other, as text and syntax trees.

    Its files are laid end to end and their lines counted through, so that a line number says which file it is in, and
    an analysis need not know how many there are. The trees are Python's `ast`, ten times faster to build and to walk
    than a concrete one; `span` gives the positions by which the concrete tree is rewritten.

    Attributes:
        files: the files, each behind those before it.
        entries: the files that are started, by name.
        resolve: finds the file that an import means.
        reached: the names of the files that an entry may import, also of those that it picks at run time, by its name.
        nodes: every node, file by file, parents before children.
    """

    files: Sequence[File]
    entries: Sequence[str]
    resolve: Resolve
    reached: Mapping[str, Sequence[str]] = field(default_factory=dict)
    nodes: list[ast.AST] = field(default_factory=list, init=False)
    _parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    _scopes: dict[ast.AST, ScopeNode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for file in self.files:
            found: list[ast.AST] = [file.tree]
            for node in found:  # which grows as it is read
                children = [*ast.iter_child_nodes(node)]
                self._parents.update(dict.fromkeys(children, node))
                found += children
            self.nodes += found

    @cached_property
    def lines(self) -> list[str]:
        """The lines of all files."""
        return [line for file in self.files for line in file.lines]

    @cached_property
    def entry_trees(self) -> list[ast.Module]:
        """The modules that are started."""
        return [file.tree for file in self.files if file.name in self.entries]

    @cached_property
    def _by_name(self) -> dict[str, ast.Module]:
        return {file.name: file.tree for file in self.files}

    def imported(self, node: ast.AST, module: str, level: int = 0) -> ast.Module | None:
        """The module of this program that an import in the file of `node` means, None for one from elsewhere."""
        found = self.resolve(self.file(node).name, module, level)
        return None if found is None else self._by_name.get(found)

    def is_package(self, module: ast.Module) -> bool:
        """Whether a module is a package's `__init__.py`."""
        return PurePosixPath(self.file(module).name).name == "__init__.py"

    def mentions(self, text: str) -> bool:
        """Whether `text` stands anywhere in the program."""
        return any(text in file.text for file in self.files)

    def file(self, node: ast.AST) -> File:
        """The file in which `node` stands."""
        return self.file_of_line(node.lineno) if hasattr(node, "lineno") else self._file_of_tree[node]

    @cached_property
    def _file_of_tree(self) -> dict[ast.AST, File]:
        return {file.tree: file for file in self.files}

    def file_of_line(self, line: int) -> File:
        """The file in which a line of the program stands."""
        return self.files[bisect_left(self._before, line) - 1]

    @cached_property
    def _before(self) -> list[int]:
        return [file.before for file in self.files]

    def module(self, node: ast.AST) -> ast.Module:
        """The module in which `node` stands."""
        return self.file(node).tree

    def where(self, node: ast.AST) -> str:
        """The place of `node` as messages have it: the line, and in a program of several files the file."""
        file, line = self.file(node), node.lineno  # type: ignore[attr-defined]
        return f"line {line - file.before}" if len(self.files) == 1 else f"{file.name}:{line - file.before}"

    @cached_property
    def calls(self) -> list[ast.Call]:
        """Every call, in the order of the text."""
        return in_order(n for n in self.nodes if isinstance(n, ast.Call))

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node that `node` is a part of, None for the module."""
        return self._parents.get(node)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around `node`, from the nearest outwards."""
        above = self._parents.get(node)
        while above is not None:
            yield above
            above = self._parents.get(above)

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that `node` is, or is part of."""
        if isinstance(node, ast.stmt):
            return node
        return next(n for n in self.ancestors(node) if isinstance(n, ast.stmt))

    def scope(self, node: ast.AST) -> ScopeNode:
        """The function, class or module in whose body `node` stands."""
        if node not in self._scopes:
            passed = [node]
            above = self._parents.get(node)
            while above is not None and not isinstance(above, SCOPES) and above not in self._scopes:
                passed.append(above)
                above = self._parents.get(above)
            found = above if isinstance(above, SCOPES) else None if above is None else self._scopes[above]
            # Kept for all on the way, which may be long: thousands of `elif` stand one in another.
            self._scopes.update(dict.fromkeys(passed, found or self.module(node)))
        return self._scopes[node]

    def scopes(self, node: ast.AST) -> Iterator[ScopeNode]:
        """The scopes around `node`, from the nearest outwards."""
        inner = node
        while inner in self._parents:
            inner = self.scope(inner)
            yield inner

    def function(self, node: ast.AST) -> FunctionNode | None:
        """The innermost function around `node`, None at module level."""
        scope: ast.AST = self.scope(node)
        while not isinstance(scope, (*FUNCTIONS, ast.Module)):
            scope = self.scope(scope)
        return None if isinstance(scope, ast.Module) else scope

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements in which `statement` stands."""
        return next(each for each in blocks(self._parents[statement]) if statement in each)

    def span(self, node: ast.AST) -> Span:
        """Where `node` stands: lines from 1, columns in characters from 0."""
        start_line, start_col = node.lineno, node.col_offset  # type: ignore[attr-defined]
        end_line, end_col = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        start, end = (in_characters(self.lines[n - 1], at) for n, at in ((start_line, start_col), (end_line, end_col)))
        return Span.of(start_line, start, end_line, end)

    def segment(self, node: ast.AST) -> str:
        """The text of `node`, as written."""
        return text_at(self.span(node), self.lines)

    def brief(self, node: ast.AST) -> str:
        """The text of `node` on one line, for reports."""
        return in_brief(self.segment(node), _BRIEF)


def link(
    texts: Mapping[str, str],
    entries: Sequence[str],
    resolve: Resolve,
    *,
    reached: Mapping[str, Sequence[str]] | None = None,
) -> ParsedProgram:
    """The files of one program, `texts` by name.

    Args:
        reached: the names of the files that each of them may import.

    Raises:
        BadInput: one of them is no Python that this interpreter reads.
    """
    files: list[File] = []
    before = 0
    for name, text in texts.items():
        now, renamed = syntax.without_async_arguments(text)
        tree = ast.increment_lineno(syntax.parse(now, name), before) if before else syntax.shared(now, name)
        files.append(File(name, now, tree, before, renamed))
        before += len(files[-1].lines)
    return ParsedProgram(files, entries, resolve, reached or {})
