"""What runs before the processes start."""

from __future__ import annotations

import ast
from functools import cached_property

from dp2ddp.analysis.control.callers import Callers, ComingTo
from dp2ddp.analysis.control.loops import Loops
from dp2ddp.analysis.launch.placement import Launch
from dp2ddp.source.nodes import is_main_guard
from dp2ddp.source.program import FUNCTIONS, FunctionNode, ParsedProgram


class BeforeLaunch:
    """Walks the script in the order in which it runs, up to the place."""

    def __init__(self, loops: Loops, callers: Callers) -> None:
        self.loops = loops
        self.callers = callers
        self.source = loops.source
        self.resolver = loops.resolver
        self._known: dict[tuple[ast.Module, ast.stmt], set[ast.AST]] = {}  # what runs before a launch
        self._ran: dict[ast.stmt, set[ast.AST]] = {}  # what a statement runs
        self._coming: dict[ast.stmt, ComingTo] = {}  # what comes to a launch
        self._all: dict[tuple[tuple[ast.Module, ast.stmt], ...], set[ast.AST]] = {}

    def nodes(self, *launches: Launch) -> set[ast.AST]:
        """What runs before the processes start: in the scripts, and while modules are imported."""
        places = tuple((each.entry, each.statement) for each in launches if each.statement)
        if places not in self._all:
            self._all[places] = self._imported.union(*(self.up_to(*place) for place in places))
        return self._all[places]

    def up_to(self, entry: ast.Module, start: ast.stmt) -> set[ast.AST]:
        """What of a script runs before it comes to the statement `start`."""
        if (entry, start) not in self._known:
            found = self._known[entry, start] = set()
            if not self._run(entry.body, start, found):
                for function in self.callers.coming_to([start]):
                    if not self.callers.of(function):  # so a library calls it
                        self._run(function.body, start, found)
        return self._known[entry, start]

    @cached_property
    def _imported(self) -> set[ast.AST]:
        started = self.source.entry_trees
        trees = [file.tree for file in self.source.files if file.tree not in started]
        return {node for tree in trees for node in ast.walk(tree) if not _is_inside(self.source, node)}

    def _run(
        self, block: list[ast.stmt], start: ast.stmt, found: set[ast.AST], around: frozenset[FunctionNode] = frozenset()
    ) -> bool:
        """Add what runs of `block`, in order, up to the launch at `start`; whether that was met.

        Args:
            around: the functions that were entered on the way, each of them once.
        """
        for statement in block:
            if statement is start:
                return True
            if statement not in self._ran:
                self._ran[statement] = set(self.loops.reached(*_run_at_once(statement)))
            if start in self._ran[statement]:
                self._enter(statement, start, found, around)
                return True
            found |= self._ran[statement]
        return False

    def _enter(
        self, statement: ast.stmt, start: ast.stmt, found: set[ast.AST], around: frozenset[FunctionNode]
    ) -> None:
        """Add what runs of the statement in which the launch is, or that calls the function in which it is."""
        if is_main_guard(statement) or isinstance(statement, (ast.Try, ast.With)):
            self._run(statement.body, start, found, around)  # type: ignore[attr-defined]
            return
        if isinstance(statement, ast.If):
            found.update(self.loops.reached(statement.test))
            for block in (statement.body, statement.orelse):
                if self._comes_to(start).inside(*block):
                    self._run(block, start, found, around)
            return
        if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):  # the next time all of it has run
            found.update(self.loops.reached(statement))
            return
        calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call)]
        entered = ((call, called.definition) for call in calls for called in self.resolver.functions_called(call))
        coming = self._comes_to(start).functions
        inner = next(((c, f) for c, f in entered if f not in around and f in coming), None)
        is_simple = getattr(statement, "value", None) is not None  # of `main(parse())` the call that is entered
        found.update(ast.walk(inner[0] if inner is not None and is_simple else statement))
        if inner is not None:
            self._run(inner[1].body, start, found, around | {inner[1]})

    def _comes_to(self, start: ast.stmt) -> ComingTo:
        if start not in self._coming:
            self._coming[start] = ComingTo(self.callers, [start])
        return self._coming[start]


def _run_at_once(statement: ast.stmt) -> list[ast.AST]:
    """What of a statement runs where it stands: of a function its defaults, of a class its body."""
    if isinstance(statement, FUNCTIONS):
        defaults = [*statement.args.defaults, *statement.args.kw_defaults]
        return [*statement.decorator_list, *(d for d in defaults if d is not None)]
    if isinstance(statement, ast.ClassDef):
        return [*statement.decorator_list, *(part for inner in statement.body for part in _run_at_once(inner))]
    return [statement]


def _is_inside(source: ParsedProgram, node: ast.AST) -> bool:
    """Whether a node stands in a function, so that it runs when that is called."""
    return any(isinstance(above, FUNCTIONS) for above in source.ancestors(node))
