"""Paths that go around a wrap: where a script may go on with the model unwrapped."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Union

from dp2ddp.analysis.names import Names
from dp2ddp.analysis.roles import Resolver, Wrapped
from dp2ddp.analysis.source import FUNCTIONS, FunctionNode, Source, is_main_guard, same

Branch = Union[ast.If, ast.IfExp]
_MOVES = frozenset({"cuda", "to", "train", "eval"})


@dataclass(frozen=True)
class Detour:
    """A way around a wrap.

    Attributes:
        branch: the `if` that decides.
        when: the value of its test for which the model isn't wrapped.
    """

    branch: Branch
    when: bool


class Paths:
    """Finds the ways around the wraps."""

    def __init__(self, source: Source, names: Names, resolver: Resolver) -> None:
        self.source = source
        self.names = names
        self.resolver = resolver

    def detour(
        self, wrap: ast.Call, outer: ast.expr, model: ast.expr | None, moved_behind: ast.If | None
    ) -> Detour | None:
        """The nearest way around a wrap, None where every path takes it, or one like it.

        Args:
            wrap: the call of `nn.DataParallel`.
            outer: the expression that it stands in and that gives the wrapped model.
            model: the model that is wrapped.
            moved_behind: the `if` behind which the wrap is moved.
        """
        start: ast.AST = moved_behind or outer
        return self._above(start, None if model is None else _bare(model)) or self._of_callers(wrap, frozenset())

    def _of_callers(self, wrap: ast.Call, seen: frozenset[FunctionNode]) -> Detour | None:
        """The way around a call of the function that returns the wrapped model."""
        function = self.source.function(wrap)
        if function is None or function in seen:
            return None
        for call in self.source.calls:
            called = any(f.definition is function for f in self.resolver.functions_called(call))
            if called and any(isinstance(r, Wrapped) and r.site is wrap for r in self.resolver.roles(call)):
                found = self._above(call, None) or self._of_callers(call, seen | {function})
                if found is not None:
                    return found
        return None

    def _above(self, start: ast.AST, model: ast.expr | None) -> Detour | None:
        node = start
        for above in self.source.ancestors(start):
            early = self._early(node, model) if isinstance(node, ast.stmt) else None
            if early is not None:
                return early
            if isinstance(above, (*FUNCTIONS, ast.Module, ast.ClassDef, ast.Lambda)) or is_main_guard(above):
                return None
            if isinstance(above, ast.IfExp) and node is not above.test and not self._wraps_on_both(above):
                return Detour(above, node is above.orelse)
            if isinstance(above, ast.If) and self._stays_inside(above.body if node in above.body else above.orelse):
                return None  # what the branch wraps, it uses
            if isinstance(above, ast.If) and not self._wraps_always(self.source.chain_head(above), start):
                return Detour(above, node not in above.body)
            node = above
        return None

    # -- branches --------------------------------------------------------------------------------------------------

    def _wraps_on_both(self, choice: ast.IfExp) -> bool:
        return self._wraps(choice.body) and self._wraps(choice.orelse)

    def _wraps_always(self, branch: ast.If, start: ast.AST) -> bool:
        """Whether all branches wrap a model, or lead nowhere."""
        if not self._block_wraps(branch.body, start):
            return False
        return self._block_wraps(branch.orelse, start) if branch.orelse else self._needs(branch, start)

    def _block_wraps(self, block: list[ast.stmt], start: ast.AST) -> bool:
        return any(self._statement_wraps(s, start) for s in block) or self._ends(block[-1])

    def _statement_wraps(self, statement: ast.stmt, start: ast.AST) -> bool:
        if isinstance(statement, ast.If):
            return statement is start or self._wraps_always(statement, start)
        return self._wraps(statement)

    def _wraps(self, node: ast.AST) -> bool:
        """Whether a statement or expression wraps a model, or calls a function that returns a wrapped one."""
        return any(self._is_wrap(n) for n in ast.walk(node) if isinstance(n, ast.Call))

    def _is_wrap(self, call: ast.Call) -> bool:
        path = self.names.qualified(call.func) or ""
        if path == "torch.nn.DataParallel" or path.endswith(".DistributedDataParallel"):
            return True
        return bool(self.resolver.functions_called(call)) and self.resolver.holds(call, Wrapped)

    def _ends(self, statement: ast.stmt) -> bool:
        """Whether the script stops here."""
        if isinstance(statement, ast.Raise):
            return True
        call = statement.value if isinstance(statement, ast.Expr) else None
        return isinstance(call, ast.Call) and self.names.qualified(call.func) in (
            "sys.exit",
            "builtins.exit",
            "os._exit",
        )

    def _stays_inside(self, block: list[ast.stmt]) -> bool:
        """Whether the script, or the function, ends with a block and gives no model back."""
        last = block[-1] if block else None
        if isinstance(last, ast.Return):
            return last.value is None or isinstance(last.value, ast.Constant)
        return last is not None and self._ends(last)

    def _needs(self, branch: ast.If, start: ast.AST) -> bool:
        """Whether nothing but these branches binds the model's name: without them there is none."""
        inside = set(ast.walk(self.source.chain_head(branch)))
        statement = self.source.statement(start) if not isinstance(start, ast.If) else start
        if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1):
            return False
        name = statement.targets[0]
        if not isinstance(name, ast.Name):
            return False
        scope = self.source.scope(name)
        own = scope.args if isinstance(scope, FUNCTIONS) else None
        if own is not None and any(isinstance(n, ast.arg) and n.arg == name.id for n in ast.walk(own)):
            return False
        bound = (
            n for n in ast.walk(scope) if isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Store)
        )
        return all(n in inside for n in bound)

    def _early(self, statement: ast.stmt, model: ast.expr | None) -> Detour | None:
        """An `if` before the wrap that returns the model as it is."""
        block = self.source.block(statement)
        for branch in (s for s in block[: block.index(statement)] if isinstance(s, ast.If)):
            for when, statements in ((True, branch.body), (False, branch.orelse)):
                returned = (n.value for s in statements for n in ast.walk(s) if isinstance(n, ast.Return))
                if any(value is not None and same(_bare(value), model) for value in returned):
                    return Detour(branch, when)
        return None


def _bare(model: ast.expr) -> ast.expr:
    while isinstance(model, ast.Call) and isinstance(model.func, ast.Attribute) and model.func.attr in _MOVES:
        model = model.func.value
    return model
