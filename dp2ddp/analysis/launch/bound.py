"""The names that are bound where the processes may start."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from dp2ddp.source.program import FUNCTIONS


@dataclass(frozen=True)
class Bound:
    """The names bound at a place: some more, and those from above. (A set for each place would be much too large.)"""

    more: frozenset[str]
    above: Bound | None = None

    def names(self) -> frozenset[str]:
        found: set[str] = set()
        at: Bound | None = self
        while at is not None:
            found |= at.more
            at = at.above
        return frozenset(found)


def bound_names(statement: ast.stmt) -> frozenset[str]:
    """The names that a statement binds."""
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return frozenset({statement.name})
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(a.asname or a.name).split(".")[0] for a in node.names}
    return frozenset(names)
