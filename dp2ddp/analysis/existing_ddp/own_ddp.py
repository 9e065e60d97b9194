"""Distributed training that a script sets up itself, beside DataParallel: on what condition, and on which lines.

The condition need not be exact. Where it is true too often, a run with DataParallel isn't spread over processes, but
still right; so parts that can't be told from where the processes start may be left out of an `and`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from functools import cached_property

from dp2ddp.analysis.control.conditions import joined, terms
from dp2ddp.analysis.control.reached import Running
from dp2ddp.analysis.roles import Function, Resolver
from dp2ddp.source.names import Names
from dp2ddp.source.nodes import in_order
from dp2ddp.source.program import FUNCTIONS, FunctionNode, ParsedProgram
from dp2ddp.source.spans import Span

#: What is so before the first process group is joined.
_AT_FIRST = re.compile(r"not [\w.]*is_initialized\(\)|([\w.]*\.)?dist(ributed)?\.is_available\(\)")
_JOIN = "init_process_group"
_WRAPPER = "DistributedDataParallel"
_SAMPLER = "DistributedSampler"
#: By what scripts ask whether they set up DDP themselves.
ASKS_FOR_DDP = re.compile(r"distributed|\bdist\b|rank|\bddp\b|world_size|multiprocessing", re.IGNORECASE)


class OwnDdp:
    """A script's own distributed training."""

    def __init__(self, source: ParsedProgram, names: Names, resolver: Resolver, running: Running) -> None:
        self.source = source
        self.names = names
        self.resolver = resolver
        self.running = running

    def begins(self, entry: ast.Module) -> list[ast.Call]:
        """Where a script begins it: a process group is joined, or a model is wrapped for it."""
        signs = (call for call in self.source.calls if self._name(call) in (_JOIN, _WRAPPER))
        calls = [call for call in signs if self.running.comes_to(entry, call)]
        joins = [call for call in calls if self._name(call) == _JOIN]
        return joins or [call for call in calls if self._name(call) == _WRAPPER]

    @cached_property
    def present(self) -> bool:
        """Whether the script can set up distributed training."""
        return any(self._name(call) in (_JOIN, _WRAPPER) and self.running.runs(call) for call in self.source.calls)

    def condition(self, entry: ast.Module) -> ast.expr | None:
        """When a script does so: a test as it is written where it begins, None if it always does."""
        modules = self.names.reachable(entry)
        tests = [self._reached_if(call, modules, frozenset()) for call in self.begins(entry)]
        known = [test for test in tests if test is not None]
        return joined(ast.Or(), known) if len(known) == len(tests) else None

    def _name(self, call: ast.Call) -> str:
        func = call.func
        path = self.names.qualified(func) or ""
        last = path.rsplit(".", 1)[-1]
        return last or (func.attr if isinstance(func, ast.Attribute) else "")

    # -- the condition ---------------------------------------------------------------------------------------------

    def _reached_if(
        self, node: ast.AST, modules: Collection[ast.Module], seen: frozenset[FunctionNode]
    ) -> ast.expr | None:
        """The condition on which `node` is reached, as far as the nearest function tells that has one."""
        found = [term for term in terms(self.source, node) if not _AT_FIRST.fullmatch(ast.unparse(term))]
        if found:
            asking = [term for term in found if ASKS_FOR_DDP.search(ast.unparse(term))]
            return joined(ast.And(), asking or found[:1])
        function = self.source.function(node)
        if function is None or function in seen:
            return None
        users = [user for user in self._users(function) if self.source.module(user) in modules]
        tests = [self._reached_if(user, modules, seen | {function}) for user in users]
        known = [test for test in tests if test is not None]
        return joined(ast.Or(), known) if tests and len(known) == len(tests) else None

    def _users(self, function: FunctionNode) -> list[ast.AST]:
        """Where a function is called, or handed on, as to `mp.spawn`."""
        named = (n for n in self.source.nodes if isinstance(n, (ast.Name, ast.Attribute)))
        roles = ((n, r) for n in named for r in self.resolver.roles(n) if isinstance(r, Function))
        return in_order({n for n, r in roles if r.definition is function})

    # -- its own lines ---------------------------------------------------------------------------------------------

    @cached_property
    def spans(self) -> list[Span]:
        """The statements that only its own runs reach: they stay as they are."""
        blocks: dict[int, list[ast.stmt]] = {}
        for call in self._signs():
            block = self._own_block(call)
            if block is not None:
                blocks[id(block)] = block
        return [self.source.span(statement) for block in blocks.values() for statement in block]

    def _signs(self) -> Iterator[ast.Call]:
        for call in self.source.calls:
            path = self.names.qualified(call.func) or ""
            if self._name(call) in (_JOIN, _WRAPPER, _SAMPLER) or path.startswith(
                ("torch.distributed.", "torch.multiprocessing.spawn")
            ):
                yield call

    def _own_block(self, call: ast.Call) -> list[ast.stmt] | None:
        """The outermost branch around a call whose test asks for distributed training, and that wraps nothing else."""
        found: list[ast.stmt] | None = None
        node: ast.AST = call
        for above in self.source.ancestors(call):
            if isinstance(above, (*FUNCTIONS, ast.Module)):
                break
            if isinstance(above, ast.If) and node is not above.test:
                block = above.body if node in above.body else above.orelse
                if any(map(self._wraps, block)):
                    break
                if ASKS_FOR_DDP.search(ast.unparse(above.test)):
                    found = block
            node = above
        return found

    def _wraps(self, statement: ast.stmt) -> bool:
        calls = (n for n in ast.walk(statement) if isinstance(n, ast.Call))
        return any(self.names.qualified(call.func) == "torch.nn.DataParallel" for call in calls)
