"""What each rank would decide for itself: by its clock, its log level."""

from __future__ import annotations

import ast
from functools import cached_property

from dp2ddp.analysis.ranks.display import Display
from dp2ddp.source.names import Names
from dp2ddp.source.program import ParsedProgram

_METHODS = frozenset({"isEnabledFor", "getEffectiveLevel", "tell"})
_TESTING = (ast.If, ast.While, ast.IfExp, ast.Assert)


class Clocks:
    """Recognises what a rank's own clock or log level tells."""

    def __init__(self, source: ParsedProgram, names: Names) -> None:
        self.source = source
        self.names = names

    def is_own(self, node: ast.expr) -> bool:
        """Whether an expression's value may be another one on another rank."""
        return self._is_own(node, self._holding)

    def _is_own(self, node: ast.expr, holding: set[tuple[ast.AST, str]]) -> bool:
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                path = self.names.qualified(part.func) or ""
                method = part.func.attr if isinstance(part.func, ast.Attribute) else ""
                if path.startswith(("time.", "datetime.")) or method in _METHODS:
                    return True
            if isinstance(part, ast.Name) and (self.source.scope(part), part.id) in holding:
                return True
        return False

    @cached_property
    def _holding(self) -> set[tuple[ast.AST, str]]:
        """The names that hold times, by scope."""
        found: set[tuple[ast.AST, str]] = set()
        assigned = [n for n in self.source.nodes if isinstance(n, (ast.Assign, ast.AugAssign))]
        before = -1
        while len(found) != before:
            before = len(found)
            for node in assigned:
                if self._is_own(node.value, found):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    found |= {(self.source.scope(t), t.id) for t in targets if isinstance(t, ast.Name)}
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
        return [test for test in tests if test not in apart and self.clocks.is_own(test)]

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
        return [b for b in branches if self.clocks.is_own(b.test) and self.display.only_shows(b)]
