"""What each rank would decide for itself: by its clock, its log level."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from functools import cached_property

from dp2ddp.analysis.ranks.display import Display
from dp2ddp.source.names import Names
from dp2ddp.source.program import FUNCTIONS, ParsedProgram

_METHODS = frozenset({"isEnabledFor", "getEffectiveLevel", "tell"})
_TESTING = (ast.If, ast.While, ast.IfExp, ast.Assert)
#: Where names are given times, by scope and name.
_Holding = dict[tuple[ast.AST, str], list[ast.stmt]]


class Clocks:
    """Recognises what a rank's own clock or log level tells."""

    def __init__(self, source: ParsedProgram, names: Names, told: Callable[[], Collection[ast.expr]] = tuple) -> None:
        self.source = source
        self.names = names
        self._told = told  # what is rank 0's on all ranks

    def may_differ(self, node: ast.expr) -> bool:
        """Whether an expression's value may be another one on another rank."""
        return self._may_differ(node, self._holding)

    def _may_differ(self, node: ast.AST, holding: _Holding) -> bool:
        if node in self._shared:
            return False
        if isinstance(node, ast.Call):
            path = self.names.qualified(node.func) or ""
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if path.startswith(("time.", "datetime.")) or method in _METHODS:
                return True
            if path in ("builtins.len", "builtins.input"):
                return False  # how many times a list holds is the same on all ranks, and what is typed is rank 0's
        if isinstance(node, ast.Name) and any(
            self._may_be_behind(node, each) for each in holding.get((self.source.scope(node), node.id), ())
        ):
            return True
        return any(self._may_differ(part, holding) for part in ast.iter_child_nodes(node))

    def _may_be_behind(self, node: ast.Name, assigned: ast.stmt) -> bool:
        """Whether a name may be read behind an assignment in its scope: further down, or in the next turn of a loop."""
        scope = self.source.scope(node)
        is_kept = isinstance(scope, FUNCTIONS) and node.id not in self.source.local_names(scope)  # `global`
        if is_kept or (node.lineno, node.col_offset) > (assigned.lineno, assigned.col_offset):
            return True
        around = {each for each in self.source.ancestors(assigned) if isinstance(each, (ast.For, ast.While))}
        return not around.isdisjoint(self.source.ancestors(node))

    @cached_property
    def _shared(self) -> Collection[ast.AST]:
        return set(self._told())

    @cached_property
    def _holding(self) -> _Holding:
        found: _Holding = {}
        assigned = [n for n in self.source.nodes if isinstance(n, (ast.Assign, ast.AugAssign))]
        while news := [n for n in assigned if self._may_differ(n.value, found)]:
            assigned = [n for n in assigned if n not in news]
            for node in news:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        found.setdefault((self.source.scope(target), target.id), []).append(node)
        return found


class OwnTests:
    """Finds the tests that must be rank 0's, and the branches that each rank may take by itself."""

    def __init__(self, clocks: Clocks, display: Display) -> None:
        self.source = clocks.source
        self.names = clocks.names
        self.clocks = clocks
        self.display = display

    @cached_property
    def shared(self) -> list[ast.expr]:
        """Tests that depend on what each rank has for itself, and that decide what the ranks do together."""
        tests = [n.test for n in self.source.nodes if isinstance(n, _TESTING)]
        apart = {branch.test for branch in self.branches}
        return [test for test in tests if test not in apart and self.clocks.may_differ(test)]

    def contains(self, node: ast.AST) -> bool:
        """Whether a node stands in one of the tests that are rank 0's as a whole."""
        return any(above in self._shared for above in self.source.ancestors(node))

    @cached_property
    def _shared(self) -> set[ast.AST]:
        return set(self.shared)

    @cached_property
    def branches(self) -> list[ast.If]:
        """Branches that each rank may take for itself, as they only show something."""
        branches = [n for n in self.source.nodes if isinstance(n, ast.If)]
        return [b for b in branches if self.clocks.may_differ(b.test) and self.display.only_shows(b)]
