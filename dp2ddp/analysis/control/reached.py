"""What the scripts of a program can run: the answers of `project.reachability`, for nodes of the program."""

from __future__ import annotations

import ast
from contextlib import suppress
from functools import cached_property, partial, reduce
from operator import or_
from typing import Union

from dp2ddp.analysis.roles import Class, Function, Resolver
from dp2ddp.errors import BadInput
from dp2ddp.project import reachability, wrapcalls
from dp2ddp.project.reachability import Reached
from dp2ddp.source import syntax
from dp2ddp.source.names import Names
from dp2ddp.source.program import FunctionNode, ParsedProgram

Definition = Union[ast.ClassDef, FunctionNode]


def means(resolver: Resolver, node: ast.AST, definition: Definition) -> bool:
    """Whether an expression can be this function or class."""
    roles = resolver.roles(node)
    return any(isinstance(role, (Class, Function)) and role.definition is definition for role in roles)


class Running:
    """What the scripts of a program can run, by the names that they use.

    Where one of a script's own functions that nothing calls comes to a wrap, all of them count: people start these by
    changing a line, or from outside.
    """

    def __init__(self, source: ParsedProgram, names: Names) -> None:
        self._source = source
        self._names = names
        self._by_entry: dict[ast.Module, Reached] = {}
        trees: dict[str, ast.Module] = {}
        for name, text in source.others.items():
            with suppress(BadInput):  # nor can Python read it
                trees[name] = syntax.shared(text, name)
        trees |= {file.name: file.tree for file in source.files}
        self._units, self._wraps = reachability.cut(trees), wrapcalls.lines_of(trees)

    def by(self, entry: ast.Module) -> Reached:
        """What one script can run."""
        if entry not in self._by_entry:
            name = self._source.file(entry).name
            imported = (self._source.file(module).name for module in self._names.reachable(entry))
            files = dict.fromkeys([*self._source.reached.get(name, ()), *imported])
            started = partial(reachability.reached, self._units, name, files, self._source.resolve)
            run, whole = started() | started(self._source.commands.get(name, ())), started(whole=True)
            comes_to_all = run.lines(self._wraps) == whole.lines(self._wraps) != {}
            self._by_entry[entry] = run if comes_to_all else whole
        return self._by_entry[entry]

    def comes_to(self, entry: ast.Module, node: ast.AST) -> bool:
        """Whether a script can come to a node."""
        return self.by(entry).has(self._source.file(node).name, node.lineno)  # type: ignore[attr-defined]

    def runs(self, node: ast.AST) -> bool:
        """Whether one of the scripts can come to a node."""
        return self._any.has(self._source.file(node).name, node.lineno)  # type: ignore[attr-defined]

    @cached_property
    def _any(self) -> Reached:
        return reduce(or_, map(self.by, self._source.entry_trees))
