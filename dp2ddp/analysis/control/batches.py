"""What a loop makes of its batch, by name."""

from __future__ import annotations

import ast


def names_in(node: ast.AST) -> set[str]:
    """The names in an expression."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def made_of(batch: ast.expr, body: list[ast.stmt]) -> set[str]:
    """The names of a loop's batch, and of what its body assigns from these."""
    names = names_in(batch)
    for node in (n for part in body for n in ast.walk(part)):
        if isinstance(node, ast.Assign) and names_in(node.value) & names:
            names.update(*map(names_in, node.targets))
    return names
