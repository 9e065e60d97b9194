"""What is known of a file's name: whether two can be the same, and whether it is a rank's own: temporary, in memory."""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable, Iterable, Set
from itertools import product

from dp2ddp.analysis.catalogue import Catalogue
from dp2ddp.analysis.dataflow.provenance import Provenance
from dp2ddp.source.names import Names

#: Text, and keys for what isn't known: the same key stands for the same value.
Pieces = tuple[Hashable, ...]

_JOINING = frozenset("os.path.join pathlib.Path pathlib.PurePath pathlib.PosixPath".split())
_SAME_FILE = frozenset(
    "builtins.str os.fspath os.fsencode os.path.abspath os.path.realpath os.path.expanduser os.path.expandvars "
    "os.path.normpath".split()
)
_SAME_FILE_METHODS = frozenset("resolve absolute expanduser as_posix strip rstrip".split())
_MOST = 16  # names that one expression can be
_FIELD = re.compile(r"%[-#0 +]*\d*(?:\.\d+)?[a-zA-Z]|\{[^{}]*\}")


class FileNames:
    """Reads the names of files off expressions."""

    def __init__(self, names: Names, provenance: Provenance, catalogue: Catalogue) -> None:
        self.names = names
        self.catalogue = catalogue
        self.provenance = provenance
        self._known: dict[ast.expr, frozenset[Pieces]] = {}
        self._split: dict[ast.expr, set[tuple[Pieces, Pieces]]] = {}

    def may_be_same(self, one: ast.expr, other: ast.expr) -> bool:
        """Whether two expressions can name one file: the same last component will do, as folders go by many names."""
        for (folder, name), (other_folder, other_name) in product(self._split_names(one), self._split_names(other)):
            if name == other_name or (folder == other_folder and _match(name, other_name)):
                return True
        return False

    def _split_names(self, node: ast.expr) -> set[tuple[Pieces, Pieces]]:
        if node not in self._split:
            self._split[node] = set(map(_split, self.of(node)))
        return self._split[node]

    def temporary(self, path: ast.expr) -> tuple[frozenset[ast.Call], bool]:
        """The calls that make the temporary file or folder that `path` is, or lies in; whether it is nothing else."""
        makers = [{piece for piece in pieces if isinstance(piece, ast.Call)} for pieces in self.of(path)]
        return frozenset().union(*makers), bool(makers) and all(makers)

    def in_memory(self, file: ast.expr) -> bool:
        """Whether what is taken for a file is a buffer, which each rank fills and reads by itself."""
        made = self.provenance.of(file)
        calls = [value for value in made if isinstance(value, ast.Call)]
        in_memory = (self.catalogue.does(self.names.qualified(call.func), "memory") for call in calls)
        return bool(made) and len(calls) == len(made) and all(in_memory)

    def of(self, node: ast.expr) -> frozenset[Pieces]:
        """The names that an expression can be, piece by piece."""
        if node not in self._known:
            itself = frozenset({(self._key(node),)})
            self._known[node] = itself  # where it is made of itself
            values = [v for v in self.provenance.of(node) if not (isinstance(v, ast.Constant) and v.value is None)]
            found = {pieces for v in values for pieces in (self._spelled(v) if v is node else self.of(v))}
            self._known[node] = frozenset(found) if len(found) <= _MOST else itself
        return self._known[node]

    def _spelled(self, node: ast.expr) -> Set[Pieces]:
        """The names that an expression builds."""
        if isinstance(node, ast.Constant):
            return {(str(node.value),)}
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
            return self._joined([node.left, node.right], "/" if isinstance(node.op, ast.Div) else "")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return self._filled(node.left, node)
        if isinstance(node, ast.JoinedStr):
            return self._joined(node.values, "")
        if isinstance(node, ast.FormattedValue):
            return self.of(node.value)
        if isinstance(node, ast.Call):
            return self._called(node)
        return {self._unknown(node)}

    def _called(self, node: ast.Call) -> Set[Pieces]:
        path = self.names.qualified(node.func)
        if self.catalogue.does(path, "temporary"):
            return {(node,)}
        if path in _JOINING and node.args:
            return self._joined(node.args, "/")
        if path in _SAME_FILE and node.args:
            return self.of(node.args[0])
        if path is None and isinstance(node.func, ast.Attribute):
            method, value = node.func.attr, node.func.value
            if method in _SAME_FILE_METHODS:
                return self.of(value)
            if method == "joinpath":
                return self._joined([value, *node.args], "/")
            if method == "format":
                return self._filled(value, node)
        return {self._unknown(node)}

    def _joined(self, parts: Iterable[ast.expr], between: str) -> set[Pieces]:
        found: set[Pieces] = {()}
        for part in parts:
            link: Pieces = (between,) if between and found != {()} else ()
            tails = self.of(part)
            found = {(*head, *link, *tail) for head in found for tail in tails}
            if len(found) > _MOST:
                return {(self._key(part),)}
        return found

    def _filled(self, text: ast.expr, whole: ast.expr) -> set[Pieces]:
        """What a text with fields is filled in to be, by `%` or `format`."""
        if not isinstance(text, ast.Constant):
            return {self._unknown(whole)}
        texts = _FIELD.split(str(text.value))
        pieces: list[Hashable] = [texts[0]]
        for each in texts[1:]:
            pieces += [*self._unknown(whole), each]
        return {tuple(pieces)}

    def _unknown(self, node: ast.expr) -> Pieces:
        """A value that isn't known, but for the temporary folder that it is made of."""
        inner = (child for child in ast.walk(node) if isinstance(child, ast.expr) and child is not node)
        named = (n for n in inner if isinstance(n, (ast.Name, ast.Attribute, ast.Call)))
        made = (piece for n in named for pieces in self.of(n) for piece in pieces if isinstance(piece, ast.Call))
        return (*[*made][:1], self._key(node))

    def _key(self, node: ast.expr) -> Hashable:
        """The same for the same value, as far as can be told."""
        keys = self.provenance.keys(node)
        return keys[0] if keys else (self.provenance.source.function(node), ast.dump(node))


def _split(pieces: Pieces) -> tuple[Pieces, Pieces]:
    """The folder and the last component of a path."""
    for index, piece in reversed([*enumerate(pieces)]):
        if isinstance(piece, str) and "/" in piece:
            head, _, tail = piece.rpartition("/")
            name = (*([tail] if tail else []), *pieces[index + 1 :])
            if name:
                return (*pieces[:index], *([head] if head else [])), name
    return (), pieces


def _match(one: Pieces, other: Pieces) -> bool:
    texts = [[piece for piece in pieces if isinstance(piece, str)] for pieces in (one, other)]
    if not all(texts):  # nothing is known of one of them: it is another one's only where both are the same value
        return False
    patterns = ["".join(re.escape(p) if isinstance(p, str) else ".*" for p in pieces) for pieces in (one, other)]
    shown = ["".join(p if isinstance(p, str) else "0" for p in pieces) for pieces in (one, other)]
    return any(re.fullmatch(patterns[i], shown[1 - i], re.DOTALL) is not None for i in (0, 1))
