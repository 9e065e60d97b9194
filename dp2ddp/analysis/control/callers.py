"""Who calls a function, and which functions come to given places, directly or not."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from functools import cached_property

from dp2ddp.analysis.roles import Resolver
from dp2ddp.source.nodes import closure
from dp2ddp.source.program import FUNCTIONS, FunctionNode, ParsedProgram


class Callers:
    """The program's own calls, backwards."""

    def __init__(self, source: ParsedProgram, resolver: Resolver) -> None:
        self.source = source
        self.resolver = resolver

    def of(self, function: ast.AST) -> list[ast.Call]:
        """The calls that can reach a function or method of the script."""
        return self._sites.get(function, [])

    @cached_property
    def _sites(self) -> dict[ast.AST, list[ast.Call]]:
        found: dict[ast.AST, list[ast.Call]] = {}
        for call in self.source.calls:
            for function in dict.fromkeys(f.definition for f in self.resolver.functions_called(call)):
                found.setdefault(function, []).append(call)
        return found

    def coming_to(self, nodes: Iterable[ast.AST]) -> set[FunctionNode]:
        """The functions in which some of `nodes` stand, and those that call such functions, directly or not."""
        return set(closure(self._around(nodes), lambda function: self._around(self.of(function))))

    def _around(self, nodes: Iterable[ast.AST]) -> list[FunctionNode]:
        return [above for node in nodes for above in self.source.ancestors(node) if isinstance(above, FUNCTIONS)]


class ComingTo:
    """Places, such as those that take all ranks, and whatever comes to them: `functions` are those that do."""

    def __init__(self, callers: Callers, nodes: Collection[ast.AST]) -> None:
        self.nodes = nodes
        self._callers = callers
        self.functions = callers.coming_to(nodes)

    def inside(self, *roots: ast.AST) -> bool:
        """Whether one of the places is in `roots`, or in what they call."""
        return any(self._is_one(node) for root in roots for node in ast.walk(root))

    def _is_one(self, node: ast.AST) -> bool:
        if node in self.nodes:
            return True
        called = self._callers.resolver.functions_called(node) if isinstance(node, ast.Call) else []
        return any(function.definition in self.functions for function in called)
