"""Threads and processes that the script starts beside its ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from dp2ddp.analysis.roles import Class, Function, Resolver
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import argument, keyword
from dp2ddp.source.program import FUNCTIONS, FunctionNode, ParsedProgram

_REPEATING = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


class Threads:
    """Finds what they run: their targets, and `run` of the script's own classes of threads."""

    def __init__(self, source: ParsedProgram, names: Names, resolver: Resolver) -> None:
        self._source = source
        self._names = names
        self._resolver = resolver

    @cached_property
    def runs(self) -> list[FunctionNode]:
        """The `run` methods of the script's own classes of threads and processes."""
        classes = (n for n in self._source.nodes if isinstance(n, ast.ClassDef))
        return [run.definition for one in classes if self._is_thread(one) for run in self._run_of(one)]

    @cached_property
    def started(self) -> dict[FunctionNode, list[ast.Call]]:
        """What they run, and the calls that make them."""
        found: dict[FunctionNode, list[ast.Call]] = {run: [] for run in self.runs}
        for call in self._source.calls:
            for function in self._run_by(call):
                found.setdefault(function, []).append(call)
        return found

    @cached_property
    def repeated(self) -> list[FunctionNode]:
        """What several of them run."""
        return [one for one, made in self.started.items() if len(made) > 1 or any(map(self._is_repeated, made))]

    def given(self, parameter: ast.expr) -> list[ast.expr]:
        """What a parameter of a target is: an item of `args=(...)` where the thread is made."""
        function = self._source.function(parameter)
        if not isinstance(parameter, ast.Name) or not isinstance(function, FUNCTIONS):
            return []
        names = [each.arg for each in function.args.args if each.arg != "self"]
        handed = [keyword(call, "args") for call in self.started.get(function, ())]
        items = [dict(zip(names, each.elts)) for each in handed if isinstance(each, (ast.Tuple, ast.List))]
        return [each[parameter.id] for each in items if parameter.id in each]

    def _run_by(self, call: ast.Call) -> Iterator[FunctionNode]:
        if _is_kind(self._names.qualified(call.func) or ast.unparse(call.func)):
            target = keyword(call, "target") or argument(call, 1, "function")
            roles = self._resolver.roles(target) if target is not None else ()
            yield from (role.definition for role in roles if isinstance(role, Function))
        made = [role.definition for role in self._resolver.roles(call.func) if isinstance(role, Class)]
        yield from (run.definition for one in made if self._is_thread(one) for run in self._run_of(one))

    def _run_of(self, definition: ast.ClassDef) -> list[Function]:
        return self._resolver.classes.methods(definition, "run")

    def _is_thread(self, definition: ast.ClassDef) -> bool:
        return any(map(_is_kind, self._resolver.classes.libraries(definition)))

    def _is_repeated(self, call: ast.Call) -> bool:
        function = self._source.function(call)
        around = (above for above in self._source.ancestors(call) if isinstance(above, _REPEATING))
        return any(self._source.function(above) is function for above in around)


def _is_kind(path: str) -> bool:
    """Whether something is a thread or a process, by its name: `threading.Thread`, `context.Process`."""
    return path.rpartition(".")[2] in ("Thread", "Timer", "Process") and "." in path
