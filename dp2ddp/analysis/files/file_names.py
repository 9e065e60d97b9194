"""Whether a file is a rank's own: a temporary one, in a temporary folder, or in memory."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Set

from dp2ddp.analysis.catalogue import Catalogue
from dp2ddp.analysis.dataflow.provenance import Provenance
from dp2ddp.source.names import Names

#: The calls that made the temporary files and folders whose names are part of a name.
Makers = frozenset[ast.Call]

_JOINING = frozenset("os.path.join pathlib.Path pathlib.PurePath pathlib.PosixPath".split())
_SAME_FILE = frozenset(
    "builtins.str os.fspath os.fsencode os.path.abspath os.path.realpath os.path.expanduser os.path.expandvars "
    "os.path.normpath".split()
)
_SAME_FILE_METHODS = frozenset("resolve absolute expanduser as_posix strip rstrip".split())


class FileNames:
    """Reads off the names of files what they are made of."""

    def __init__(self, names: Names, provenance: Provenance, catalogue: Catalogue) -> None:
        self.names = names
        self.catalogue = catalogue
        self.provenance = provenance
        self._known: dict[ast.expr, frozenset[Makers]] = {}

    def temporary(self, path: ast.expr) -> tuple[Makers, bool]:
        """The calls that make the temporary file or folder that `path` is, or lies in; whether it is nothing else."""
        makers = self._of(path)
        return frozenset().union(*makers), bool(makers) and all(makers)

    def in_memory(self, file: ast.expr) -> bool:
        """Whether what is taken for a file is a buffer, which each rank fills and reads by itself."""
        made = self.provenance.of(file)
        calls = [value for value in made if isinstance(value, ast.Call)]
        in_memory = (self.catalogue.does(self.names.qualified(call.func), "memory") for call in calls)
        return bool(made) and len(calls) == len(made) and all(in_memory)

    def _of(self, node: ast.expr) -> frozenset[Makers]:
        """What makes each of the names that an expression can be."""
        if node not in self._known:
            self._known[node] = frozenset({frozenset()})  # where it is made of itself
            values = [v for v in self.provenance.of(node) if not (isinstance(v, ast.Constant) and v.value is None)]
            found = (makers for v in values for makers in (self._built(v) if v is node else self._of(v)))
            self._known[node] = frozenset(found)
        return self._known[node]

    def _built(self, node: ast.expr) -> Set[Makers]:
        """As `_of`, of an expression that is no name of another one."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
            return self._joined([node.left, node.right])
        if isinstance(node, ast.JoinedStr):
            return self._joined(node.values)
        if isinstance(node, ast.FormattedValue):
            return self._of(node.value)
        if isinstance(node, ast.Call):
            path = self.names.qualified(node.func)
            if self.catalogue.does(path, "temporary"):
                return {frozenset({node})}
            if path in _JOINING and node.args:
                return self._joined(node.args)
            if path in _SAME_FILE and node.args:
                return self._of(node.args[0])
            if path is None and isinstance(node.func, ast.Attribute):
                if node.func.attr in _SAME_FILE_METHODS:
                    return self._of(node.func.value)
                if node.func.attr == "joinpath":
                    return self._joined([node.func.value, *node.args])
        return {self._any_in(node)}

    def _joined(self, parts: Iterable[ast.expr]) -> set[Makers]:
        found: set[Makers] = {frozenset()}
        for part in parts:
            found = {head | tail for head in found for tail in self._of(part)}
        return found

    def _any_in(self, node: ast.expr) -> Makers:
        """Of a name that is built in another way, what makes any part of it."""
        inner = (each for each in ast.walk(node) if each is not node)
        named = (each for each in inner if isinstance(each, (ast.Name, ast.Attribute, ast.Call)))
        return frozenset().union(*(makers for each in named for makers in self._of(each)))
