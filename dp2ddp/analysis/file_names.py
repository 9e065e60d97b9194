"""What is known of a file's name: whether two can be the same, and whether it is in a rank's own temporary folder."""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable, Iterable
from itertools import product

from dp2ddp.analysis.names import Names
from dp2ddp.analysis.provenance import Provenance

#: Text, and keys for what isn't known: the same key stands for the same value.
Pieces = tuple[Hashable, ...]

_TEMPORARY = frozenset(
    "tempfile.mkdtemp tempfile.mkstemp tempfile.mktemp tempfile.TemporaryDirectory tempfile.NamedTemporaryFile "
    "tempfile.TemporaryFile tempfile.SpooledTemporaryFile".split()
)
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

    def __init__(self, names: Names, provenance: Provenance) -> None:
        self.names = names
        self.provenance = provenance
        self._known: dict[ast.expr, frozenset[Pieces]] = {}

    def may_be_same(self, one: ast.expr, other: ast.expr) -> bool:
        """Whether two expressions can name the same file, by its last component: folders go by many names."""
        pairs = product(self.of(one), self.of(other))
        return any(_match(_last(a), _last(b)) for a, b in pairs)

    def temporary(self, path: ast.expr) -> tuple[frozenset[ast.Call], bool]:
        """The calls that make the temporary file or folder that `path` is, or lies in; whether it is nothing else."""
        makers = [{piece for piece in pieces if isinstance(piece, ast.Call)} for pieces in self.of(path)]
        return frozenset().union(*makers), bool(makers) and all(makers)

    def of(self, node: ast.expr) -> frozenset[Pieces]:
        """The names that an expression can be, piece by piece."""
        if node not in self._known:
            self._known[node] = frozenset(self._of(node, frozenset()))
        return self._known[node]

    def _of(self, node: ast.expr, seen: frozenset[ast.expr]) -> set[Pieces]:
        found: set[Pieces] = set()
        for value in self.provenance.of(node):
            if not (isinstance(value, ast.Constant) and value.value is None):
                found |= {(self._key(value),)} if value in seen else self._spelled(value, seen | {value})
        return found if len(found) <= _MOST else {(self._key(node),)}

    def _spelled(self, node: ast.expr, seen: frozenset[ast.expr]) -> set[Pieces]:
        """The names that an expression builds."""
        if isinstance(node, ast.Constant):
            return {(str(node.value),)}
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div)):
            return self._joined([node.left, node.right], "/" if isinstance(node.op, ast.Div) else "", seen)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return self._filled(node.left, node, seen)
        if isinstance(node, ast.JoinedStr):
            return self._joined(node.values, "", seen)
        if isinstance(node, ast.FormattedValue):
            return self._of(node.value, seen)
        if isinstance(node, ast.Call):
            return self._called(node, seen)
        return {self._unknown(node, seen)}

    def _called(self, node: ast.Call, seen: frozenset[ast.expr]) -> set[Pieces]:
        path = self.names.qualified(node.func)
        if path in _TEMPORARY:
            return {(node,)}
        if path in _JOINING and node.args:
            return self._joined(node.args, "/", seen)
        if path in _SAME_FILE and node.args:
            return self._of(node.args[0], seen)
        if path is None and isinstance(node.func, ast.Attribute):
            method, value = node.func.attr, node.func.value
            if method in _SAME_FILE_METHODS:
                return self._of(value, seen)
            if method == "joinpath":
                return self._joined([value, *node.args], "/", seen)
            if method == "format":
                return self._filled(value, node, seen)
        return {self._unknown(node, seen)}

    def _joined(self, parts: Iterable[ast.expr], between: str, seen: frozenset[ast.expr]) -> set[Pieces]:
        found: set[Pieces] = {()}
        for part in parts:
            link: Pieces = (between,) if between and found != {()} else ()
            found = {(*head, *link, *tail) for head in found for tail in self._of(part, seen)}
            if len(found) > _MOST:
                return {(self._key(part),)}
        return found

    def _filled(self, text: ast.expr, whole: ast.expr, seen: frozenset[ast.expr]) -> set[Pieces]:
        """What a text with fields is filled in to be, by `%` or `format`."""
        if not isinstance(text, ast.Constant):
            return {self._unknown(whole, seen)}
        texts = _FIELD.split(str(text.value))
        pieces: list[Hashable] = [texts[0]]
        for each in texts[1:]:
            pieces += [*self._unknown(whole, seen), each]
        return {tuple(pieces)}

    def _unknown(self, node: ast.expr, seen: frozenset[ast.expr]) -> Pieces:
        """A value that isn't known, but for the temporary folder that it is made of."""
        inner = (child for child in ast.walk(node) if isinstance(child, ast.expr) and child is not node)
        named = (n for n in inner if isinstance(n, (ast.Name, ast.Attribute, ast.Call)) and n not in seen)
        makers = (v for n in named for v in self.provenance.of(n) if isinstance(v, ast.Call))
        made = [maker for maker in makers if self.names.qualified(maker.func) in _TEMPORARY]
        return (*made[:1], self._key(node))

    def _key(self, node: ast.expr) -> Hashable:
        """The same for the same value, as far as can be told."""
        keys = self.provenance.keys(node)
        return keys[0] if keys else (self.provenance.source.function(node), ast.dump(node))


def _last(pieces: Pieces) -> Pieces:
    """The last component of a path."""
    found: list[Hashable] = []
    for piece in reversed(pieces):
        if isinstance(piece, str):
            _, slash, tail = piece.rpartition("/")
            found.append(tail)
            if slash and (tail or any(found)):
                break
        else:
            found.append(piece)
    return tuple(piece for piece in reversed(found) if piece != "")


def _match(one: Pieces, other: Pieces) -> bool:
    if one == other:
        return True
    texts = [[piece for piece in pieces if isinstance(piece, str)] for pieces in (one, other)]
    if not all(texts):  # nothing is known of one of them: it is another one's only where both are the same value
        return False
    patterns = ["".join(re.escape(p) if isinstance(p, str) else ".*" for p in pieces) for pieces in (one, other)]
    shown = ["".join(p if isinstance(p, str) else "0" for p in pieces) for pieces in (one, other)]
    return any(re.fullmatch(patterns[i], shown[1 - i], re.DOTALL) is not None for i in (0, 1))
