"""Which wraps a script can come to, by the names that its code uses.

Coarser than a call graph, and on the safe side: a function or class counts as used as soon as anything that is used
says its name where it can mean it. What no name leads to is left out, so that a script that shares a file of helpers
with a training script isn't taken for one.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dp2ddp.source.nodes import is_main_guard

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
#: By these a function may be picked by a name that is computed, or said in text.
_PICKING = frozenset(
    "globals locals vars eval exec import_module __import__ __dict__ Fire locate import_string".split()
)
#: Of these, Python's own functions: as attributes they are something else, as `model.eval()` is.
_BUILT_IN = frozenset({"globals", "locals", "vars", "eval", "exec"})
_ANY = "*"


@dataclass(eq=False)
class _Code:
    """A piece of a file: a definition, an imported name, or what is outside of all of them.

    Attributes:
        foreign: the names in its file that stand for what is no part of the project.
        brings: of an imported name, what it is called where it comes from.
    """

    nodes: list[ast.stmt] = field(default_factory=list)
    foreign: frozenset[str] = frozenset()
    brings: str | None = None

    @cached_property
    def own(self) -> frozenset[str]:
        """The names that it uses, which mean something in its own file."""
        return frozenset(node.id for node in self._walk() if isinstance(node, ast.Name))

    @cached_property
    def others(self) -> frozenset[str]:
        """The names that it uses of other files."""
        named = {name for node in self._walk() for name in _of_others(node, self.foreign)}
        return frozenset(named if self.brings is None else {self.brings})

    @cached_property
    def texts(self) -> frozenset[str]:
        """What it says in strings."""
        strings = (n.value for n in self._walk() if isinstance(n, ast.Constant) and isinstance(n.value, str))
        return frozenset(word for text in strings for word in text.split("."))

    def _walk(self) -> Iterator[ast.AST]:
        return (node for top in self.nodes for node in ast.walk(top))

    def has(self, line: int) -> bool:
        """Whether the line is one of its own."""
        return any(node.lineno <= line <= (node.end_lineno or line) for node in self.nodes)


class _File:
    """A file cut into pieces.

    Attributes:
        outside: what runs when it is imported.
        guard: what runs only when it is started.
        names: its functions, its classes and what it imports, by name, those under conditions not among them.
        has_star: whether a name may come from a star import.
        picks: whether it picks functions by names that are computed.
    """

    def __init__(self, tree: ast.Module, modules: Collection[str]) -> None:
        nodes = list(ast.walk(tree))
        imports = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
        self._modules = modules
        foreign = frozenset(name for node in imports for name in self._foreign(node))
        self.has_star = any(alias.name == _ANY for node in imports for alias in node.names if self._is_own(node, alias))
        self.picks = any(_picks(node, foreign) for node in nodes)
        self.outside, self.guard = _Code(foreign=foreign), _Code(foreign=foreign)
        self.names: dict[str, list[_Code]] = defaultdict(list)
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and all(alias.name != _ANY for alias in node.names):
                for alias in node.names:
                    if self._is_own(node, alias):
                        self.names[alias.asname or alias.name].append(_Code(brings=alias.name))
            # A decorator may hand the function on to anybody.
            elif isinstance(node, _DEFINITIONS) and not node.decorator_list:
                self.names[node.name].append(_Code([node], foreign))
            else:
                (self.guard if is_main_guard(node) else self.outside).nodes.append(node)

    def started(self, function: str | None, *, whole: bool) -> list[_Code]:
        """What runs when it is started, besides what is outside."""
        if function is not None:
            return self.names.get(function.split(".")[0], [])
        # A script may pick its own functions in ways that name none of them, as `fire.Fire()` does.
        return [self.guard, *(code for codes in self.names.values() for code in codes if whole or self.picks)]

    def pieces(self) -> list[_Code]:
        """What runs only where it is used, or when the file is started."""
        return [self.guard, *(code for codes in self.names.values() for code in codes)]

    def _foreign(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        """The names that an import binds to what is no part of the project."""
        for alias in node.names:
            if not self._is_own(node, alias):
                yield (alias.asname or alias.name).split(".")[0]

    def _is_own(self, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
        if isinstance(node, ast.ImportFrom) and node.level:
            return True
        path = (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        return path.split(".")[0] in self._modules


class Uses:
    """The uses of wraps in a project.

    Args:
        trees: the files that may be asked about.
        wraps: the lines of the wraps of each file.
    """

    def __init__(self, trees: Mapping[str, ast.Module], wraps: Mapping[str, Sequence[int]]) -> None:
        self._trees = trees
        self._wraps = wraps
        self._modules = {part for path in trees for part in path[: -len(".py")].split("/")}
        self._cut: dict[str, _File] = {}

    def wraps(
        self, entry: str, paths: Iterable[str], function: str | None = None, *, whole: bool = False
    ) -> dict[str, list[int]]:
        """The lines of the wraps that the script `entry`, made of the files `paths`, can come to, by file.

        Args:
            function: the function by which it is started from outside, None for a script that is run.
            whole: any of its functions may be started, and anything used where names are computed.
        """
        files = {path: self._file(path) for path in paths if path in self._trees}
        if whole and any(file.picks for file in files.values()):
            return {path: list(self._wraps[path]) for path in files if self._wraps.get(path)}
        found: dict[str, list[int]] = defaultdict(list)
        for path, code in _used(files, entry, function, whole=whole):
            found[path] += [line for line in self._wraps.get(path, ()) if code.has(line)]
        return {path: sorted(set(lines)) for path, lines in found.items() if lines}

    def unreached(self, programs: Mapping[str, Iterable[str]]) -> list[ast.stmt]:
        """The functions, classes and main guards that wrap nothing and that none of some scripts can come to.

        Args:
            programs: the files that each script is made of.
        """
        used: set[_Code] = set()
        passed: dict[_Code, str] = {}
        for entry, paths in programs.items():
            files = {path: self._file(path) for path in paths if path in self._trees}
            pieces = [(path, code) for path, file in files.items() for code in file.pieces()]
            passed.update((code, path) for path, code in pieces)
            if any(file.picks for file in files.values()):
                used.update(code for path, code in pieces if path == entry or code is not files[path].guard)
            used.update(code for _, code in _used(files, entry, None, whole=True))
        idle = [
            code
            for code, path in passed.items()
            if code not in used and not any(map(code.has, self._wraps.get(path, ())))
        ]
        return [node for code in idle for node in code.nodes]

    def _file(self, path: str) -> _File:
        if path not in self._cut:
            self._cut[path] = _File(self._trees[path], self._modules)
        return self._cut[path]


def _used(files: Mapping[str, _File], entry: str, function: str | None, *, whole: bool) -> Iterator[tuple[str, _Code]]:
    """The pieces that a script uses; arguments as for `Uses.wraps`."""
    live = [(path, file.outside) for path, file in files.items()]
    if entry in files:
        live += [(entry, code) for code in files[entry].started(function, whole=whole)]
    return _spread(live, files)


def _spread(live: list[tuple[str, _Code]], files: Mapping[str, _File]) -> Iterator[tuple[str, _Code]]:
    """The pieces that are used, starting from those that are `live`."""
    defined: dict[str, list[tuple[str, _Code]]] = defaultdict(list)
    for path, file in files.items():
        for name, codes in file.names.items():
            defined[name] += [(path, code) for code in codes]
    are_picked = any(file.picks for file in files.values())
    seen: set[_Code] = set()
    while live:
        path, code = live.pop()
        if code in seen:
            continue
        seen.add(code)
        yield path, code
        anywhere = code.others | (code.texts if are_picked else frozenset())
        anywhere |= code.own if files[path].has_star else frozenset()
        for name in anywhere & defined.keys():
            live += defined[name]
        for name in code.own & files[path].names.keys():
            live += [(path, each) for each in files[path].names[name]]


def _of_others(node: ast.AST, foreign: Collection[str]) -> Iterator[str]:
    """The names of other files that a node may use."""
    if isinstance(node, ast.ImportFrom):
        yield from (alias.name for alias in node.names if (alias.asname or alias.name) not in foreign)
    elif isinstance(node, ast.Attribute):
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not (isinstance(root, ast.Name) and (root.id in foreign or root.id == "self")):
            yield node.attr
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        yield from (str(value.value) for value in node.args[1:2] if isinstance(value, ast.Constant))


def _picks(node: ast.AST, foreign: Collection[str]) -> bool:
    """Whether a node may pick a function of the project by a name that is computed."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        return len(node.args) > 1 and not isinstance(node.args[1], ast.Constant) and not _is_of(node.args[0], foreign)
    if isinstance(node, ast.Attribute):
        # (Models have a method `modules`, too.)
        is_picking = node.attr in _PICKING - _BUILT_IN or (
            node.attr == "modules" and ast.unparse(node) == "sys.modules"
        )
        return is_picking and (node.attr != "__dict__" or not _is_of(node.value, foreign))
    return isinstance(node, ast.Name) and node.id in _PICKING


def _is_of(node: ast.expr, names: Collection[str]) -> bool:
    """Whether an expression is one of these names, or an attribute of one."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in names
