"""What runs after an exception that not every rank sees, or that each sees at another line."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

from dp2ddp.analysis.control.callers import Callers
from dp2ddp.analysis.control.conditions import ends_the_script
from dp2ddp.analysis.control.loops import Loops
from dp2ddp.source.names import Names
from dp2ddp.source.program import FunctionNode, ParsedProgram

#: What a full memory or a shard's samples bring about. Exceptions of other kinds come to all ranks alike, Ctrl-C too.
_PARTING = frozenset(
    "builtins.BaseException builtins.Exception builtins.RuntimeError builtins.MemoryError builtins.ArithmeticError "
    "builtins.FloatingPointError builtins.ZeroDivisionError torch.OutOfMemoryError torch.cuda.OutOfMemoryError".split()
)


class Handlers:
    """Looks for handlers after which the ranks would wait for each other.

    Args:
        callers: who calls which function.
        together: the nodes at which all ranks have to come along: calls of models, loops over loaders.
        alone: the calls that rank 0 alone makes, and the packages of what is called. An error of theirs is rank 0's.
    """

    def __init__(
        self,
        source: ParsedProgram,
        names: Names,
        loops: Loops,
        callers: Callers,
        together: Collection[ast.AST],
        alone: Mapping[ast.AST, str],
    ) -> None:
        self.source = source
        self.names = names
        self.loops = loops
        self.callers = callers
        self.together = together
        self.alone = alone

    def parting(self) -> Iterator[ast.ExceptHandler]:
        """The handlers of exceptions from lines that the ranks run together, which then go on with such lines."""
        tries = [n for n in self.source.nodes if isinstance(n, ast.Try)]
        for node in sorted(tries, key=lambda n: n.lineno):
            packages = self._packages_of_rank_0(node)
            if packages or self._needs_all(node.body):
                yield from (h for h in node.handlers if self._parts(h, packages) and self._goes_on(node, h))

    def _packages_of_rank_0(self, node: ast.Try) -> set[str]:
        """What rank 0 alone uses in the body of a `try` in a training loop, where batches are looked at together."""
        if not any(above in self.together for above in self.source.ancestors(node)):
            return set()
        return {self.alone[part] for part in self.loops.reached(*node.body) if part in self.alone}

    def _parts(self, handler: ast.ExceptHandler, packages: Collection[str]) -> bool:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        paths = [None if kind is None else self.names.qualified(kind) for kind in kinds]
        if None in kinds or not _PARTING.isdisjoint(path for path in paths if path):
            return True
        return any(path is not None and path.split(".")[0] in packages for path in paths)

    def _goes_on(self, node: ast.Try, handler: ast.ExceptHandler) -> bool:
        ways = self._ways_on(handler.body)
        return (
            self._needs_all([*handler.body, *node.finalbody])
            or (ast.Return in ways and self._needs_all_in_callers(self.source.function(node), frozenset()))
            or any(self._needs_all_after(node, way is ast.Break, frozenset()) for way in ways - {ast.Return})
        )

    def _ways_on(self, block: list[ast.stmt]) -> set[type[ast.stmt]]:
        """By what a block is left for lines of the script; `Pass` for its end."""
        ways: set[type[ast.stmt]] = set()
        for statement in block:
            inner: set[type[ast.stmt]] = set() if ends_the_script([statement]) else {ast.Pass}
            if isinstance(statement, ast.If):
                inner = self._ways_on(statement.body) | self._ways_on(statement.orelse)
            elif isinstance(statement, (ast.Return, ast.Continue, ast.Break)):
                inner = {type(statement)}
            ways |= inner - {ast.Pass}
            if ast.Pass not in inner:
                return ways
        return ways | {ast.Pass}

    def _needs_all_after(self, statement: ast.stmt, broken: bool, seen: frozenset[FunctionNode]) -> bool:
        """Whether what runs after `statement` needs all ranks; `broken`: it leaves the loop that it is in."""
        node: ast.stmt = statement
        while True:
            block = self.source.block(node)
            if not (broken and node is statement) and self._needs_all(block[block.index(node) + 1 :]):
                return True
            above = self.source.parent(node)
            while isinstance(above, ast.ExceptHandler):
                above = self.source.parent(above)
            if isinstance(above, (ast.For, ast.While)):
                if not broken and self._needs_all([above]):
                    return True
                broken = False
            if not isinstance(above, ast.stmt) or isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return self._needs_all_in_callers(self.source.function(statement), seen)
            node = above

    def _needs_all_in_callers(self, function: FunctionNode | None, seen: frozenset[FunctionNode]) -> bool:
        if function is None or function in seen:
            return False
        calls = self.callers.of(function)
        return any(self._needs_all_after(self.source.statement(c), False, seen | {function}) for c in calls)

    def _needs_all(self, statements: list[ast.stmt]) -> bool:
        return any(node in self.together for node in self.loops.reached(*statements))
