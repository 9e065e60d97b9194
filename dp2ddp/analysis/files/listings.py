"""What is asked of the file system: whether a file is there, and which files there are."""

from __future__ import annotations

import ast

from dp2ddp.analysis.dataflow.provenance import Provenance
from dp2ddp.analysis.roles import Class, Function, Instance, Module
from dp2ddp.source.names import Names
from dp2ddp.source.program import ParsedProgram

_QUESTIONS = frozenset("os.path.exists os.path.isfile os.path.isdir os.path.lexists os.access".split())
_QUESTION_METHODS = frozenset({"exists", "is_file", "is_dir"})
_LISTINGS = frozenset("os.listdir glob.glob os.walk glob.iglob os.scandir subprocess.getoutput".split())
_LISTING_METHODS = frozenset({"iterdir", "glob", "rglob"})
#: Those that list while they are iterated over, and what another rank can't be told.
_LAZY = frozenset({"os.walk", "glob.iglob"})
_UNTOLD = frozenset({"os.scandir"})
#: What makes a plain value of a list, and of nothing else that could differ.
_PURE = frozenset(
    "builtins.sorted builtins.list builtins.len builtins.max builtins.min builtins.set builtins.tuple builtins.bool "
    "builtins.any builtins.sum natsort.natsorted".split()
)
_PLAIN = ("os.path.", "builtins.", "re.", "pathlib.Path", "fnmatch.")


class Listings:
    """Recognises questions and listings, and what a script makes of a list before it uses it."""

    def __init__(self, source: ParsedProgram, names: Names, provenance: Provenance) -> None:
        self.source = source
        self.names = names
        self.provenance = provenance
        self.resolver = provenance.resolver

    def is_question(self, call: ast.Call) -> bool:
        """Whether a call asks whether a file is there."""
        path = self.names.qualified(call.func)
        if path is not None:
            return path in _QUESTIONS
        return self._is_method(call, _QUESTION_METHODS) and not call.args

    def is_listing(self, call: ast.Call) -> bool:
        """Whether a call lists files."""
        path = self.names.qualified(call.func)
        return path in _LISTINGS if path is not None else self._is_method(call, _LISTING_METHODS)

    def _is_method(self, call: ast.Call, methods: frozenset[str]) -> bool:
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr not in methods:
            return False
        return not self.resolver.holds(func, Function) and not self.resolver.holds(func.value, Class, Instance, Module)

    def decided_by(self, node: ast.expr) -> set[ast.Call]:
        """The listings that an iterable is made of."""
        found: set[ast.Call] = set()
        todo = [node]
        seen: set[ast.expr] = set()
        while todo:
            for value in self.provenance.of(todo.pop()) - seen:
                seen.add(value)
                if isinstance(value, ast.Call) and self.is_listing(value):
                    found.add(value)
                elif isinstance(value, ast.Call):
                    todo += [*value.args, *([value.func.value] if isinstance(value.func, ast.Attribute) else [])]
                elif isinstance(value, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
                    todo.append(value.generators[0].iter)
                elif isinstance(value, (ast.BinOp, ast.Subscript, ast.Starred)):
                    todo += [n for n in ast.iter_child_nodes(value) if isinstance(n, ast.expr)]
        return found

    def whole(self, listing: ast.Call) -> tuple[ast.expr, bool] | None:
        """The expression that is to be rank 0's, and whether it must be made a list first; None where it can't be.

        That is the list with what is made of it at once: `sorted(...)`, `len(...)`, a comprehension that picks files.
        """
        path = self.names.qualified(listing.func)
        if path == "os.walk" and self._is_steered(listing):
            return None
        if path in _UNTOLD and not self._is_named(listing):
            return None
        node: ast.expr = listing
        lazy = path in _LAZY or path is None
        while True:
            above = self.source.parent(node)
            if isinstance(above, ast.Call) and node in above.args and self.names.qualified(above.func) in _PURE:
                node, lazy = above, False
            elif isinstance(above, ast.comprehension) and self._picks(above, node):
                node = self.source.parent(above)  # type: ignore[assignment]
                lazy = isinstance(node, ast.GeneratorExp)
            else:
                break
        iterated = isinstance(above, (ast.For, ast.comprehension)) and above.iter is node
        return None if lazy and not iterated else (node, lazy)

    def _is_named(self, listing: ast.Call) -> bool:
        """Whether a comprehension makes names or paths of the entries of a folder: `[e.name for e in ...]`."""
        loop = self.source.parent(listing)
        whole = self.source.parent(loop) if isinstance(loop, ast.comprehension) and loop.iter is listing else None
        if not isinstance(whole, (ast.ListComp, ast.SetComp, ast.GeneratorExp)) or len(whole.generators) > 1:
            return False
        return isinstance(whole.elt, ast.Attribute) and whole.elt.attr in ("name", "path")

    def _picks(self, loop: ast.comprehension, node: ast.expr) -> bool:
        """Whether a comprehension makes a plain list of the files that it picks."""
        whole = self.source.parent(loop)
        if not isinstance(whole, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            return False
        first, *others = whole.generators
        parts = (whole.elt, *first.ifs, *others)
        calls = (n for part in parts for n in ast.walk(part) if isinstance(n, ast.Call))
        return loop is first and loop.iter is node and all(map(self._is_plain, calls))

    def _is_plain(self, call: ast.Call) -> bool:
        path = self.names.qualified(call.func)
        if path is not None:
            return path.startswith(_PLAIN)
        func = call.func
        return isinstance(func, ast.Attribute) and (hasattr(str, func.attr) or func.attr in _QUESTION_METHODS)

    def _is_steered(self, walk: ast.Call) -> bool:
        """Whether a loop over `os.walk(...)` changes which folders come."""
        loop = self.source.parent(walk)
        target = loop.target if isinstance(loop, ast.For) else None
        if not (isinstance(target, ast.Tuple) and len(target.elts) == 3 and isinstance(target.elts[1], ast.Name)):
            return False
        folders = target.elts[1].id
        used = (n for s in loop.body for n in ast.walk(s) if isinstance(n, (ast.Subscript, ast.Attribute)))  # type: ignore[union-attr]
        return any(isinstance(n.value, ast.Name) and n.value.id == folders for n in used)
