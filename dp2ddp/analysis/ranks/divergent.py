"""Lines that a rank may run without the others, or more often: no rank may wait for another one there."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from functools import cached_property

from dp2ddp.analysis.files.fetching import Fetching
from dp2ddp.analysis.ranks.threads import Threads
from dp2ddp.analysis.roles import Function, is_property
from dp2ddp.source.program import FUNCTIONS, FunctionNode

#: What calls the functions that it is given once, where it stands.
_RUNNERS = frozenset(
    "fire.Fire absl.app.run tensorflow.app.run tensorflow.compat.v1.app.run typer.run plac.call clize.run "
    "functools.wraps functools.update_wrapper".split()
)
_SAMPLING = frozenset({"__getitem__", "__getitems__", "__iter__", "__len__", "__call__"})


class RankDivergent:
    """Finds the lines.

    Args:
        fetching: what the first rank of each machine does before the others; and what that asks, asked here as well.
        branches: branches that the ranks take each for itself.
        threads: threads and processes that the script starts.
    """

    def __init__(self, fetching: Fetching, branches: Collection[ast.stmt], threads: Threads) -> None:
        self.source = fetching.source
        self.names = fetching.names
        self.resolver = fetching.resolver
        self.loops = fetching.loops
        self._callers = fetching.callers
        self._needing_all = fetching.needing_all
        self._branches = branches
        self._threads = threads
        self._steps = fetching.in_turn

    @cached_property
    def nodes(self) -> set[ast.AST]:
        """The lines that a rank may run alone."""
        return self.apart | set(self.loops.reached(*(step.statement for step in self._steps)))

    @cached_property
    def apart(self) -> set[ast.AST]:
        """The lines that a rank may run alone, but for those that the ranks run one after the other."""
        roots: list[ast.AST] = [*self.per_sample_roots]
        for node in self.source.nodes:
            if isinstance(node, ast.ExceptHandler) or (isinstance(node, FUNCTIONS) and node.name == "__del__"):
                roots.append(node)
        roots += [s for branch in self._branches for s in (*branch.body, *branch.orelse)]  # type: ignore[attr-defined]
        return set(self.loops.reached(*roots))

    @cached_property
    def per_sample_roots(self) -> list[ast.AST]:
        """What is called for a sample, by a worker or a library: nobody knows when, and on which ranks."""
        methods = [m for node in self.sampling_classes for m in node.body if isinstance(m, FUNCTIONS)]
        unknown = (m for m in methods if _is_sampling(m) or not (self._callers.of(m) or is_property(m)))
        return [*unknown, *self.handed_on]

    @cached_property
    def sampling_classes(self) -> list[ast.ClassDef]:
        """What is called is a transform, or a data set's way to read a file; a model has a forward."""
        classes = (n for n in self.source.nodes if isinstance(n, ast.ClassDef))
        lineage = self.resolver.classes.lineage
        return [n for n in classes if any(_is_sampling(method) for one in lineage(n) for method in one.body)]

    @cached_property
    def in_samples(self) -> set[ast.AST]:
        """What runs for one sample of a data set, and for nothing else: on the rank that loads it."""
        methods = [m for node in self.sampling_classes for m in node.body if isinstance(m, FUNCTIONS)]
        functions: set[ast.AST] = {m for m in methods if m.name in ("__getitem__", "__getitems__")}
        todo = {n for n in self.loops.reached(*functions) if isinstance(n, FUNCTIONS)} - functions
        while True:
            calls = {function: self._callers.of(function) for function in todo}
            inner = {f for f in todo if calls[f] and all(self.source.function(c) in functions for c in calls[f])}
            if not inner:
                return {node for function in functions for node in ast.walk(function)}
            functions |= inner
            todo -= inner

    @cached_property
    def handed_on(self) -> list[ast.AST]:
        """Functions that others may call, but for those that all ranks have to run: those train, or wrap a model."""
        lambdas: list[ast.AST] = [n for n in self.source.nodes if isinstance(n, ast.Lambda)]
        functions = dict.fromkeys([*self._given_away(), *self._threads.runs])
        return [*lambdas, *(f for f in functions if not self._needing_all.inside(f))]

    def _given_away(self) -> Iterator[FunctionNode]:
        """Functions that are named without being called, where that isn't known to lead to a call of the script's."""
        called = {c.func for c in self.source.calls}
        for node in self.source.nodes:
            named = isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
            if not named or node in called:
                continue
            functions = [r.definition for r in self.resolver.roles(node) if isinstance(r, Function)]
            taker = self._taker(node) if functions else None
            if taker is None:  # it is kept: called where that is found
                yield from (f for f in functions if not self._callers.of(f))
            elif not self.resolver.functions_called(taker) and self.names.qualified(taker.func) not in _RUNNERS:
                yield from functions

    def _taker(self, node: ast.AST) -> ast.Call | None:
        """The call to which a function is given."""
        above = self.source.parent(node)
        if isinstance(above, ast.keyword):
            above = self.source.parent(above)
        while isinstance(above, (ast.Tuple, ast.List, ast.Starred)):
            above = self.source.parent(above)
        return above if isinstance(above, ast.Call) else None


def _is_sampling(node: ast.AST) -> bool:
    """Whether this is a method by which others take samples, or hand them through."""
    return isinstance(node, FUNCTIONS) and node.name in _SAMPLING
