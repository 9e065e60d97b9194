"""All that rules may ask about a program. There is nothing here that guesses.

A rule asks what a name is (imports, one file and the import closure), which call this is, its arguments, its scope,
which class something derives from, and where models are wrapped. What may be reached, which value something has, how
many devices there are, which loader feeds which model: the runtime knows that, so no rule has to.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from dp2ddp.analysis import own_ddp
from dp2ddp.analysis.catalogue import Catalogue
from dp2ddp.analysis.classes import Classes, Definition, asks_for_type
from dp2ddp.analysis.loaders import Loaders
from dp2ddp.analysis.replicas import Blocker, Replicas
from dp2ddp.analysis.wraps import Wraps
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import is_main_guard, last_name
from dp2ddp.source.program import ParsedProgram
from dp2ddp.source.spans import Span


@dataclass(frozen=True)
class Facts:
    """What a program says, computed when it is asked for, once.

    Attributes:
        source: the program: its files, syntax trees, scopes, spans.
        allow_ddp: whether it may also set up DistributedDataParallel itself.
        sync_bn: whether BatchNorm is to be synchronised.
        catalogue: the functions of libraries that need an edit.
    """

    source: ParsedProgram
    allow_ddp: bool = False
    sync_bn: bool = False
    catalogue: Catalogue = field(default_factory=Catalogue)

    @cached_property
    def names(self) -> Names:
        """What names stand for, by imports."""
        return Names(self.source)

    @cached_property
    def classes(self) -> Classes:
        """The program's own classes and functions."""
        return Classes(self.source, self.names)

    @cached_property
    def wraps(self) -> Wraps:
        """The uses of `DataParallel`."""
        return Wraps(self.source, self.names, self.classes)

    @cached_property
    def loaders(self) -> Loaders:
        """The data loaders."""
        return Loaders(self.source, self.names, self.classes)

    @cached_property
    def replicas(self) -> Replicas:
        """What reaches for DataParallel's replicas."""
        return Replicas(self.source, self.names, self.classes, self.wraps)

    def qualified(self, node: ast.AST) -> str | None:
        """The dotted path of what an expression names in another package; None for anything else."""
        return self.names.qualified(node)

    def brings_own(self, statement: ast.stmt) -> bool:
        """Whether a statement imports a module of the program's own."""
        return self.names.brings_own(statement)

    def definition(self, node: ast.AST | None) -> Definition | None:
        """The class or function of the program that an expression names."""
        return self.classes.definition(node)

    def span(self, node: ast.AST) -> Span:
        """Where a node stands."""
        return self.source.span(node)

    def calls(self, paths: Collection[str]) -> Iterator[ast.Call]:
        """The calls of functions of other packages, in order."""
        return (call for call in self.source.calls if self.qualified(call.func) in paths)

    def is_named_as_wrapped(self, node: ast.expr) -> bool:
        """Whether an expression has the name of something to which a wrapped model is assigned."""
        return last_name(node) in self.wraps.targets

    def is_handed_on(self, node: ast.AST) -> bool:
        """Whether something is named as a value: not called, derived from, or asked for as a type."""
        above = self.source.parent(node)
        if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
            return False
        if isinstance(above, ast.ClassDef) or (isinstance(above, ast.Call) and above.func is node):
            return False
        return not asks_for_type(self.source, self.names, node)

    # ---- the program as a whole ------------------------------------------------------------------------------------

    @cached_property
    def blockers(self) -> list[Blocker]:
        """What keeps the program from being converted; all of it, but what stands in a file's trial of itself."""
        own = own_ddp.blockers(self.source, self.names, allow_ddp=self.allow_ddp) if self.entries else ()
        found = [*own, *self._unconvertible]
        return [each for each in found if self._guarding(each.node) in (None, *self.source.entry_trees)]

    @cached_property
    def _unconvertible(self) -> list[Blocker]:
        return list(self.replicas.blockers(sync_bn=self.sync_bn))

    @cached_property
    def entries(self) -> list[ast.Module]:
        """The started files that import something that wraps, directly or not, or do so themselves."""
        uses = [*self.wraps.wrapping, *(blocker.node for blocker in self._unconvertible)]
        started = [(self.source.module(node), self._guarding(node)) for node in uses]
        return [
            entry
            for entry in self.source.entry_trees
            for reached in [self.names.reachable(entry)]
            if any(module in reached and guard in (None, entry) for module, guard in started)
        ]

    def _guarding(self, node: ast.AST) -> ast.Module | None:
        """The file that has to be started for a node to run, as it stands under `if __name__ == "__main__":`."""
        top = [node, *self.source.ancestors(node)][-2:]
        return self.source.module(node) if len(top) == 2 and is_main_guard(top[0]) else None

    def is_trial(self, node: ast.AST) -> bool:
        """Whether a node stands under the main guard of a file that only others import, where it does nothing."""
        return self._guarding(node) not in (None, *self.entries)

    @property
    def wraps_models(self) -> bool:
        """Whether anything in the program runs on several devices, so that there are several ranks."""
        return bool(self.wraps.models or self.wraps.functional or self.wraps.values)

    @cached_property
    def modules(self) -> frozenset[ast.Module]:
        """The files that are converted: these, and what they import. All others stay as they are."""
        return frozenset().union(*map(self.names.reachable, self.entries))

    @cached_property
    def beside_ddp(self) -> bool:
        """Whether the program can also set up DistributedDataParallel itself."""
        return self.allow_ddp and own_ddp.is_present(self.source, self.names)

    @cached_property
    def own_ddp(self) -> list[Span]:
        """The lines that are for that alone."""
        return own_ddp.own_spans(self.source, self.names) if self.beside_ddp else []
