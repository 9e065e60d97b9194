"""Fetching files: which statements are one step that the first rank of each machine takes before the others."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import takewhile
from operator import is_not

from dp2ddp.analysis.control.callers import Callers, ComingTo
from dp2ddp.analysis.control.loops import Loops
from dp2ddp.analysis.files.listings import Listings
from dp2ddp.analysis.files.writers import Writers
from dp2ddp.analysis.roles import Class
from dp2ddp.source.nodes import given_to, keyword
from dp2ddp.source.program import FUNCTIONS, FunctionNode

_FETCHING = re.compile(r"\b(wget|curl|gdown|unzip|aria2c|gsutil|kaggle datasets download|tar -?\w*x\w*)\b")
_ARCHIVES = ("zipfile.ZipFile", "tarfile.")
_UNPACKING = frozenset({"extract", "extractall", "close", "printdir", "testzip"})
_MOST_CALLERS = 4
_LOOPS = (ast.For, ast.While)


@dataclass(frozen=True)
class Step:
    """A statement that the first rank of each machine runs before the others.

    Attributes:
        statement: the whole of "if it is missing, fetch it"; as much of it as the ranks may run one after the other.
        call: what fetches.
        looks: whether the others find then that nothing is missing; else they must not fetch again.
        guarded: the statements that run only where something is missing.
        needs_all: whether the ranks can't run it one after the other.
    """

    statement: ast.stmt
    call: ast.Call
    looks: bool
    guarded: tuple[ast.stmt, ...] = ()
    needs_all: bool = False


class Fetching:
    """Finds the steps.

    Args:
        needing_all: what takes all ranks.
        is_temporary: whether an expression names a rank's own temporary file or folder.
    """

    def __init__(
        self,
        loops: Loops,
        listings: Listings,
        writers: Writers,
        callers: Callers,
        needing_all: ComingTo,
        is_temporary: Callable[[ast.expr], bool],
    ) -> None:
        self.source = loops.source
        self.names = loops.names
        self.resolver = loops.resolver
        self.loops = loops
        self.listings = listings
        self.writers = writers
        self.callers = callers
        self.needing_all = needing_all
        self._is_temporary = is_temporary

    @cached_property
    def steps(self) -> list[Step]:
        """The steps, outer ones before those inside."""
        found = [step for call, looks in self._fetches() for step in self._steps(call, call, looks, frozenset())]
        inside = {node for step in found if not step.needs_all for node in ast.walk(step.statement)}
        found = [step for step in found if not self._is_called_in(step, inside)]
        return sorted(dict.fromkeys(found), key=lambda step: (step.statement.lineno, -(step.statement.end_lineno or 0)))

    def _is_called_in(self, step: Step, nodes: Collection[ast.AST]) -> bool:
        """Whether whoever comes to a step is among these nodes: its function is only called by other steps."""
        function = self.source.function(step.statement)
        calls = self.callers.of(function) if function is not None else []
        return bool(calls) and all(call in nodes for call in calls)

    @property
    def in_turn(self) -> list[Step]:
        """The steps that the ranks of a machine can take one after the other."""
        return [step for step in self.steps if not step.needs_all]

    def once(self, step: Step) -> list[ast.expr]:
        """The functions that only the first rank of a machine may call, where the others would fetch again."""
        if step.looks:
            return []
        func = step.call.func
        if isinstance(func, ast.Attribute) and func.attr.startswith("extract") and not self.names.qualified(func):
            archives = self.writers.makers(func.value)
            others = [c for c in self.writers.method_calls if c.func.attr not in _UNPACKING]  # type: ignore[attr-defined]
            is_inside = archives.issubset(ast.walk(step.statement))  # else it is only rank 0's, not each machine's
            if is_inside and not any(archives & self.writers.makers(c.func.value) for c in others):  # type: ignore[attr-defined]
                return [archive.func for archive in archives]
        return [func] if isinstance(self.source.parent(step.call), ast.Expr) else []

    def _fetches(self) -> Iterator[tuple[ast.Call, bool]]:
        """The calls that fetch, and whether they look first."""
        for call in self.source.calls:
            given = given_to(call)
            looks = self._looks(call)
            if looks is not None and not any(map(self._is_temporary, given)):
                yield call, looks

    def _looks(self, call: ast.Call) -> bool | None:
        """Whether a call looks first if there is something to fetch; None for one that fetches nothing."""
        path = self.names.qualified(call.func) or ""
        function = self.writers.catalogue.of(path)
        does = "" if function is None else function.does
        if function is not None and does == "fetches":
            has_target = path != "urllib.request.urlretrieve" or len(call.args) + len(call.keywords) > 1
            return "looks" in function.marks if has_target else None
        if does == "runs":
            return False if _FETCHING.search(self.source.segment(call)) else None
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if not path and method in ("extractall", "extract"):
            made = self.writers.packages(call.func.value)  # type: ignore[attr-defined]
            return False if any(one.startswith(_ARCHIVES) for one in made) else None
        if self.resolver.functions_called(call) and not self._is_data_set(call):
            return None  # the script's own function hands it on, and may do more than download
        given = keyword(call, "download")
        asked = given is not None and not (isinstance(given, ast.Constant) and not given.value)
        return True if asked else None

    def needs_folder(self, call: ast.Call) -> bool:
        """Whether the folder that a call fetches to has to be there: other functions make it."""
        function = self.writers.catalogue.of(self.names.qualified(call.func))
        return function is not None and function.does in ("fetches", "runs") and "looks" not in function.marks

    def _is_data_set(self, call: ast.Call) -> bool:
        """Whether a call makes an object of a class of this script that derives from one of torchvision's data sets."""
        made = [role.definition for role in self.resolver.roles(call.func) if isinstance(role, Class)]
        paths = (path for each in made for path in self.resolver.classes.libraries(each))
        return any(path.startswith("torchvision.datasets.") for path in paths)

    # -- how much of the script one step is ----------------------------------------------------------------------------

    def _steps(self, node: ast.AST, call: ast.Call, looks: bool, seen: frozenset[FunctionNode]) -> list[Step]:
        """The steps of what fetches at `node`: with the question around it, here or where this function is called."""
        statement, guarded = self._climb(node)
        function = self.source.function(node)
        here = [Step(statement, call, looks or bool(guarded), guarded, self.needing_all.inside(statement))]
        if guarded or function is None or function in seen or len(seen) == _MOST_CALLERS:
            return here
        guarded = self._behind_question(statement, function)
        callers = [
            replace(step, looks=step.looks or bool(guarded), guarded=step.guarded or guarded)
            for site in self.callers.of(function)
            for step in self._steps(site, call, looks, seen | {function})
        ]
        fine = callers and all(step.guarded and not step.needs_all for step in callers)
        return callers if fine else here

    def _climb(self, node: ast.AST) -> tuple[ast.stmt, tuple[ast.stmt, ...]]:
        """The largest statement around `node`, in its function, that can be one step; what of it only runs where
        something is missing."""
        found = inner = self.source.statement(node)
        guarded: tuple[ast.stmt, ...] = ()
        for above in self.source.ancestors(found):
            if isinstance(above, (*FUNCTIONS, ast.Module, ast.ClassDef)):
                break
            if isinstance(above, (ast.If, ast.For, ast.With, ast.Try)):
                if self.needing_all.inside(above):
                    break
                if not isinstance(above, ast.If):
                    found = above
                    guarded = next((tuple(h.body) for h in getattr(above, "handlers", ()) if inner in h.body), guarded)
                elif self.asks_files(above.test) and not self._leaves_names(above):
                    found = self.source.chain_head(above)
                    guarded = tuple(above.body if inner in above.body else above.orelse)
            inner = above if isinstance(above, ast.stmt) else inner
        return found, guarded

    def _leaves_names(self, branch: ast.If) -> bool:
        """Whether a name that a branch binds may be used behind it: a rank that finds the file would not have it."""
        inside = set(ast.walk(branch))
        scope: ast.AST = self.source.function(branch) or self.source.module(branch)
        names = [n for n in ast.walk(scope) if isinstance(n, ast.Name) and self._scope_of(n) is scope]
        bound = {n.id for n in names if n in inside and isinstance(n.ctx, ast.Store)}
        used = [n for n in names if n.id in bound and n not in inside and isinstance(n.ctx, ast.Load)]
        return not all(self._is_bound_anew(n, {branch, *self.source.ancestors(branch)}) for n in used)

    def _scope_of(self, name: ast.Name) -> object:
        key = self.listings.provenance.keys(name)[0]
        return key[0] if isinstance(key, tuple) else None

    def _is_bound_anew(self, name: ast.Name, around: Collection[ast.AST]) -> bool:
        """Whether a name is bound on every way from a branch, or what is `around` it, to this use."""
        inner: ast.AST = name
        for above in self.source.ancestors(name):
            if isinstance(above, (ast.For, ast.With)) and inner in above.body and _binds(above, name.id):
                return above not in around
            if isinstance(above, (*FUNCTIONS, ast.Lambda)) or (isinstance(above, _LOOPS) and above in around):
                break  # it runs another time, too
            block = self.source.block(above) if isinstance(above, ast.stmt) else []
            for earlier in reversed([*takewhile(partial(is_not, above), block)]):
                if earlier in around:
                    return False
                if isinstance(earlier, ast.Assign) and _binds(earlier, name.id):
                    return True
            inner = above
        return False

    # -- questions -----------------------------------------------------------------------------------------------------

    def _behind_question(self, statement: ast.stmt, function: FunctionNode) -> tuple[ast.stmt, ...]:
        """What a function runs behind an early return where the files are there."""
        for index, earlier in enumerate(function.body):
            if not isinstance(earlier, ast.If) or earlier.orelse or earlier.lineno >= statement.lineno:
                continue
            if self.asks_files(earlier.test) and isinstance(earlier.body[-1], (ast.Return, ast.Raise)):
                return tuple(function.body[index + 1 :])
        return ()

    def asks_files(self, test: ast.expr) -> bool:
        """Whether a test asks for files, itself or by functions of the script, or by a name that holds the answer."""
        parts = [n for n in ast.walk(test) if isinstance(n, ast.expr)]
        values = [v for n in parts if isinstance(n, ast.Name) for v in self.listings.provenance.of(n)]
        calls = [n for part in (*parts, *values) for n in ast.walk(part) if isinstance(n, ast.Call)]
        called = (function.definition for call in calls for function in self.resolver.functions_called(call))
        return any(map(self._is_question, calls)) or any(function in self._asking for function in called)

    def _is_question(self, call: ast.Call) -> bool:
        return self.listings.is_question(call) or self.listings.is_listing(call)

    @cached_property
    def _asking(self) -> set[FunctionNode]:
        """The functions that ask for files."""
        return self.callers.coming_to(call for call in self.source.calls if self._is_question(call))


def _binds(statement: ast.stmt, name: str) -> bool:
    """Whether a statement binds a name, what is inside of it left aside."""
    parts = [part for part in ast.iter_child_nodes(statement) if not isinstance(part, ast.stmt)]
    found = (node for part in parts for node in ast.walk(part))
    return any(isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name for node in found)
