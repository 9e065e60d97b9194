"""Where a file wraps something in `DataParallel`, seen from afar: which files matter, and what is left to convert.

Cheaper and coarser than `analysis`: names are taken at their word, and files are looked at one by one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator

from dp2ddp.source.nodes import attribute_got, closure, last_name

CLASS = "DataParallel"
FUNCTION = "data_parallel"
#: What writes DataParallel's forward out calls it.
STEP = "parallel_apply"
#: Names by which a file may have to do with DataParallel.
CALLED = (CLASS, FUNCTION, STEP)
_MARKS = tuple(map(str.encode, CALLED))
_MODULES = frozenset({"nn", "parallel", FUNCTION, STEP})
_ANOTHER = re.compile(rf"{CLASS}(?!Config|Kwargs)\w*|(?!Distributed|Sharded|FullySharded)\w*(?<!Distributed){CLASS}")
_SAID = re.compile(rf"(?:^|\.){CLASS}$")


def mentions(data: bytes) -> bool:
    """Whether the file with these bytes can have anything to do with `DataParallel`."""
    return any(mark in data for mark in _MARKS)


def subclasses(trees: Iterable[ast.Module]) -> frozenset[str]:
    """The names of the files' own classes that derive from `DataParallel`, be it by way of another one."""
    derived: dict[str, list[str]] = {}
    for node in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for base in node.bases:
            derived.setdefault(last_name(base), []).append(node.name)
    return frozenset(closure(derived.get(CLASS, ()), lambda name: derived.get(name, ())))


def places(tree: ast.AST, classes: Collection[str] = ()) -> list[int]:
    """The lines where something is wrapped, or will be by whom `DataParallel` itself is handed to.

    Args:
        classes: the names of the project's own classes that derive from it.
    """
    nodes = list(ast.walk(tree))
    names = {CLASS, *classes, *_imported_as(nodes)}
    modules = {*_MODULES, *_modules_as(nodes)}
    read = (n for n in nodes if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Load))
    found: list[ast.expr] = [n for n in read if last_name(n) in names]
    for func in (node.func for node in nodes if isinstance(node, ast.Call)):
        # Methods of the name `data_parallel` are something else.
        is_torchs = isinstance(func, ast.Attribute) and func.attr in CALLED and last_name(func.value) in modules
        if is_torchs or (attribute_got(func) or (func, ""))[1] in CALLED:
            found.append(func)
    about = {part for node in nodes for each in _type_questions(node) for part in ast.walk(each)} if found else set()
    return sorted({node.lineno for node in found if node not in about})


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
    nodes = list(ast.walk(tree))
    imports = (node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)))
    known = {(alias.asname or alias.name).split(".")[0] for node in imports for alias in node.names}
    known |= {"torch", "nn"} if "*" in known else set()  # mostly it is a star import that brings them
    is_said = any(isinstance(n, ast.Constant) and isinstance(n.value, str) and _SAID.search(n.value) for n in nodes)
    expressions = (node for node in nodes if isinstance(node, ast.expr))
    found = (n for n in expressions if _is_of_unknown(n, known) or (is_said and _is_computed(n)))
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def _is_of_unknown(node: ast.expr, known: Collection[str]) -> bool:
    """Whether `DataParallel` is asked of what no import binds."""
    value, name = (node.value, node.attr) if isinstance(node, ast.Attribute) else attribute_got(node) or (node, "")
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


def _imported_as(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What a file calls torch's own by, and others' classes of that name, such as `DataParallelWithCallback`."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            is_torchs = (node.module or "").split(".")[0] == "torch"
            known = (a for a in node.names if (a.name in CALLED if is_torchs else _ANOTHER.fullmatch(a.name)))
            yield from (alias.asname or alias.name for alias in known)


def _modules_as(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """What a file calls torch's modules that have `data_parallel`: `P` of `import torch.nn.parallel as P`."""
    for node in nodes:
        for alias in node.names if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
            if alias.asname is not None and alias.name.split(".")[-1] in _MODULES:
                yield alias.asname
