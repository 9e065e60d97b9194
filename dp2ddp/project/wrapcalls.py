"""Where a file wraps something in `DataParallel`, seen from afar: which files matter, and what is left to convert.

Cheaper and coarser than `analysis`: names are taken at their word, and files are looked at one by one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from dp2ddp.source.nodes import attribute_got, closure, last_name

CLASS = "DataParallel"
FUNCTION = "data_parallel"
#: What writes DataParallel's forward out calls it.
STEP = "parallel_apply"
_MARKS = (CLASS.encode(), FUNCTION.encode(), STEP.encode())
#: Names by which a file may have to do with DataParallel.
CALLED = (CLASS, FUNCTION, STEP)


def mentions(data: bytes) -> bool:
    """Whether the file with these bytes can have anything to do with `DataParallel`."""
    return any(mark in data for mark in _MARKS)


def subclasses(trees: Iterable[ast.Module]) -> frozenset[str]:
    """The names of the files' own classes that derive from `DataParallel`, be it by way of another one."""
    classes = [node for tree in trees for node in _nodes(tree) if isinstance(node, ast.ClassDef)]
    derived: dict[str, list[str]] = {}
    for node in classes:
        for base in node.bases:
            derived.setdefault(last_name(base), []).append(node.name)
    return frozenset(closure(derived.get(CLASS, ()), lambda name: derived.get(name, ())))


def find(tree: ast.Module, classes: Collection[str] = ()) -> list[ast.Call]:
    """The calls of `DataParallel`, `data_parallel` and `parallel_apply`, and of the subclasses named `classes`."""
    nodes = list(ast.walk(tree))
    return _calls(nodes, {CLASS, *classes, *_imported_as(nodes)}, classes)


def _calls(nodes: Sequence[ast.AST], names: Collection[str], classes: Collection[str]) -> list[ast.Call]:
    modules = {*_MODULES, *_modules_as(nodes)}
    calls = (node for node in nodes if isinstance(node, ast.Call))
    return sorted((call for call in calls if _wraps(call.func, names, classes, modules)), key=lambda call: call.lineno)


def places(tree: ast.Module, classes: Collection[str] = ()) -> list[int]:
    """The lines where something is wrapped, or will be by whom `DataParallel` itself is handed to."""
    nodes = _nodes(tree)
    names = {CLASS, *classes, *_imported_as(nodes)}
    calls = _calls(nodes, names, classes)
    apart: set[ast.AST] = {call.func for call in calls}
    read = (n for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Load))
    values = [n for n in read if last_name(n) in names and n not in apart]
    if values:
        apart = {part for node in nodes for about in _type_questions(node) for part in ast.walk(about)}
    return sorted(node.lineno for node in (*calls, *(n for n in values if n not in apart)))


def lines_of(trees: Mapping[str, ast.Module]) -> dict[str, list[int]]:
    """`places` of several files, with the classes that derive in one of them."""
    classes = subclasses(trees.values())
    return {path: places(tree, classes) for path, tree in trees.items()}


@lru_cache(maxsize=4096)
def _nodes(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


def _type_questions(node: ast.AST) -> list[ast.AST]:
    """Parts of a node in which a class is named to ask for a type, to derive from it, or by itself."""
    if isinstance(node, ast.Call) and last_name(node.func) in ("isinstance", "issubclass"):
        return [*node.args[1:]]
    if isinstance(node, ast.Call) and last_name(node.func) == "super":
        return [*node.args[:1]]
    if isinstance(node, ast.Compare):
        return [node]
    if isinstance(node, ast.ClassDef):
        return [*node.bases]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return [node.returns] if node.returns is not None else []
    if isinstance(node, (ast.arg, ast.AnnAssign)):
        return [node.annotation] if node.annotation is not None else []
    return []


def unfollowed(tree: ast.Module) -> list[ast.expr]:
    """Where a file names `DataParallel` in a way that can't be followed: of what nobody knows, or by computed names."""
    nodes = _nodes(tree)
    imports = (node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)))
    known = {(alias.asname or alias.name).split(".")[0] for node in imports for alias in node.names}
    known |= {"torch", "nn"} if "*" in known else set()  # mostly it is a star import that brings them
    is_said = any(isinstance(n, ast.Constant) and isinstance(n.value, str) and _SAID.search(n.value) for n in nodes)
    found = (
        n for n in nodes if isinstance(n, ast.expr) and (_is_of_unknown(n, known) or (is_said and _is_computed(n)))
    )
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def _is_of_unknown(node: ast.expr, known: Collection[str]) -> bool:
    """Whether `DataParallel` is asked of what no import binds."""
    if isinstance(node, ast.Attribute):
        value, name = node.value, node.attr
    else:
        value, name = attribute_got(node) or (node, "")
    if name != CLASS:
        return False
    while isinstance(value, ast.Attribute):
        value = value.value
    return not (isinstance(value, ast.Name) and value.id in known)


def _is_computed(node: ast.expr) -> bool:
    """Whether a class of torch's is picked by a computed name."""
    if not (isinstance(node, ast.Call) and last_name(node.func) == "getattr" and len(node.args) > 1):
        return False
    return last_name(node.args[0]) in _MODULES and not isinstance(node.args[1], ast.Constant)


def _wraps(func: ast.expr, names: Collection[str], classes: Collection[str], modules: Collection[str]) -> bool:
    if isinstance(func, ast.Name):
        return func.id in names
    got = attribute_got(func)
    if got is not None:
        return got[1] in CALLED
    if not isinstance(func, ast.Attribute):
        return False
    # Methods of the name `data_parallel` are something else.
    return func.attr == CLASS or func.attr in classes or (func.attr in CALLED and last_name(func.value) in modules)


def _imported_as(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """What a file calls torch's own by, and others' classes of that name, such as `DataParallelWithCallback`."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            is_torchs = (node.module or "").split(".")[0] == "torch"
            known = (a for a in node.names if (a.name in CALLED if is_torchs else _ANOTHER.fullmatch(a.name)))
            yield from (alias.asname or alias.name for alias in known)


def _modules_as(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """What a file calls torch's modules that have `data_parallel`: `P` of `import torch.nn.parallel as P`."""
    for node in nodes:
        for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            if alias.asname is not None and alias.name.split(".")[-1] in _MODULES:
                yield alias.asname


_MODULES = frozenset({"nn", "parallel", FUNCTION, STEP})
_ANOTHER = re.compile(rf"{CLASS}(?!Config|Kwargs)\w*|(?!Distributed|Sharded|FullySharded)\w*(?<!Distributed){CLASS}")
_SAID = re.compile(rf"(?:^|\.){CLASS}$")
