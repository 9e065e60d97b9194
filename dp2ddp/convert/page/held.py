"""Which wraps an expression holds, and what the script calls a value."""

from __future__ import annotations

import ast

from dp2ddp.analysis.facts import Facts
from dp2ddp.analysis.roles import Wrapped
from dp2ddp.convert.page.flow import Part


class Held:
    """Answers for the expressions of one program."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.source = facts.source

    def sites(self, node: ast.expr) -> set[ast.Call]:
        """The wraps of which an expression can hold the model."""
        found = {role.site for role in self.facts.resolver.roles(node) if isinstance(role, Wrapped)}
        return found if len(found) < 2 else self._held_at(node, found)

    def _held_at(self, node: ast.expr, sites: set[ast.Call]) -> set[ast.Call]:
        """Of the wraps that a name can hold those that it can hold at `node`.

        Roles don't know of order; a picture is clearer where `net` after the training isn't `net` before it.
        """
        source, name = self.source, self.source.segment(node)
        around = [node, *source.ancestors(node)]
        own = [s for s in sites if source.scope(s) is source.scope(node) and self.name(s) == name]
        certain = [s for s in own if s.lineno < node.lineno and source.parent(source.statement(s)) in around]
        if not certain:
            return sites
        first = max(s.lineno for s in certain)
        # A loop comes back to what stands below in it.
        last = max([node.lineno, *(n.end_lineno or 0 for n in around if isinstance(n, (ast.For, ast.While)))])
        return {s for s in sites if s not in own or first <= s.lineno <= last}

    def part(self, node: ast.expr, *, detail: str | None = None) -> Part:
        file = self.source.file(node)
        text = self.source.brief(node) if detail is None else detail
        return Part(self.name(node) or text, text, file.name, node.lineno - file.before)

    def name(self, node: ast.expr) -> str | None:
        """What the script calls a value: the target of its assignment, the key under which it stands."""
        below: ast.AST = node
        for above in self.source.ancestors(node):
            if isinstance(above, ast.Dict) and below in above.values:
                key = above.keys[above.values.index(below)]
                return None if key is None else self.source.brief(key)
            if isinstance(above, ast.DictComp):
                return None
            if isinstance(above, ast.Assign):
                return self.source.brief(above.targets[0])
            if isinstance(above, (ast.AnnAssign, ast.NamedExpr)):
                return self.source.brief(above.target)
            if isinstance(above, ast.stmt):
                return self._function(above)
            below = above
        return None

    def _function(self, statement: ast.stmt) -> str | None:
        """What is returned goes by the function's name."""
        function = self.source.function(statement)
        return f"{function.name}()" if isinstance(statement, ast.Return) and function is not None else None
