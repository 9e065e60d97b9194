"""Which wraps a script can come to, by the names that its code uses.

Coarser than a call graph, and on the safe side: a function or class counts as used as soon as anything that is used
says its name, be it as an attribute or in a string. What no name leads to is left out, so that a script that shares a
file of helpers with a training script isn't taken for one.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dp2ddp.analysis.source import is_main_guard

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(eq=False)
class _Code:
    """A piece of a file: a definition, or what is outside of all of them."""

    nodes: list[ast.stmt] = field(default_factory=list)

    @cached_property
    def words(self) -> frozenset[str]:
        return frozenset(word for top in self.nodes for node in ast.walk(top) for word in _words(node))

    def has(self, line: int) -> bool:
        """Whether the line is one of its own."""
        return any(node.lineno <= line <= (node.end_lineno or line) for node in self.nodes)


@dataclass
class _File:
    """A file cut into pieces.

    Attributes:
        outside: what runs when it is imported.
        guard: what runs only when it is started.
        definitions: its functions and classes by name, those under conditions not among them.
    """

    outside: _Code = field(default_factory=_Code)
    guard: _Code = field(default_factory=_Code)
    definitions: dict[str, list[_Code]] = field(default_factory=lambda: defaultdict(list))


class Uses:
    """The uses of wraps in a project.

    Args:
        trees: the files that may be asked about.
        wraps: the lines of the wraps of each file.
    """

    def __init__(self, trees: Mapping[str, ast.Module], wraps: Mapping[str, Sequence[int]]) -> None:
        self._trees = trees
        self._wraps = wraps
        self._cut: dict[str, _File] = {}

    def wraps(self, entry: str, paths: Iterable[str]) -> dict[str, list[int]]:
        """The lines of the wraps that the script `entry`, made of the files `paths`, can come to, by file."""
        files = {path: self._file(path) for path in paths if path in self._trees}
        live = [(path, file.outside) for path, file in files.items()]
        if entry in files:
            # A script may pick its own functions in ways that name none of them, as `fire.Fire()` does.
            own = (code for codes in files[entry].definitions.values() for code in codes)
            live += [(entry, code) for code in [files[entry].guard, *own]]
        defined: dict[str, list[tuple[str, _Code]]] = defaultdict(list)
        for path, file in files.items():
            if path == entry:
                continue
            for name, codes in file.definitions.items():
                defined[name] += [(path, code) for code in codes]
        found: dict[str, list[int]] = defaultdict(list)
        while live:
            path, code = live.pop()
            found[path] += [line for line in self._wraps.get(path, ()) if code.has(line)]
            for word in code.words & defined.keys():
                live += defined.pop(word)
        return {path: sorted(lines) for path, lines in found.items() if lines}

    def _file(self, path: str) -> _File:
        if path not in self._cut:
            file = _File()
            for node in self._trees[path].body:
                # A decorator may hand the function on to anybody.
                if isinstance(node, _DEFINITIONS) and not node.decorator_list:
                    file.definitions[node.name].append(_Code([node]))
                else:
                    (file.guard if is_main_guard(node) else file.outside).nodes.append(node)
            self._cut[path] = file
        return self._cut[path]


def _words(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        return (node.attr,)
    if isinstance(node, ast.alias):
        return node.name.split(".")
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.split(".")
    return ()
