"""Scripts that set up distributed training themselves, and scripts that dp2ddp has converted already."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dp2ddp import RUNTIME_PACKAGE
from dp2ddp.errors import BadInput
from dp2ddp.source.program import File

_FRAMEWORKS = {
    "accelerate": "Accelerate",
    "deepspeed": "DeepSpeed",
    "horovod": "Horovod",
    "lightning": "Lightning",
    "lightning_fabric": "Lightning Fabric",
    "pytorch_lightning": "Lightning",
}
_WRAPPER = "DistributedDataParallel"
_JOIN = "init_process_group"
_CONVERTED = ("DataParallel", "data_parallel", "parallel_apply")


def is_converted(file: File) -> bool:
    """Whether a file calls dp2ddp's runtime already."""
    if RUNTIME_PACKAGE not in file.text:
        return False
    return any(name.split(".")[0] == RUNTIME_PACKAGE for node in ast.walk(file.tree) for name in _imported(node))


def refuse(file: File, *, allow_ddp: bool = False, beside: bool = False) -> None:
    """Refuses a file that sets up distributed training itself.

    `isinstance(model, DistributedDataParallel)` alone sets up nothing. With `allow_ddp` torch's own means are allowed.

    Args:
        beside: whether DataParallel is used in another file of the program.

    Raises:
        BadInput: it does; names the first line that shows it.
    """
    if not any(mark in file.text for mark in (*_FRAMEWORKS, _WRAPPER, _JOIN)):
        return
    nodes = list(ast.walk(file.tree))
    own = [] if allow_ddp else list(_signs(nodes))
    found = min([*own, *_frameworks(nodes)], default=None)
    if found is not None:
        line, what = found
        beside = found in own and (beside or uses_data_parallel(file))
        raise BadInput(
            file.name,
            line=line - file.before,
            what=f"sets up distributed training already: {what}",
            todo="--allow-ddp converts the DataParallel branch and leaves the DDP branch alone"
            if beside
            else "dp2ddp converts scripts that use nn.DataParallel alone",
        )


def _frameworks(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        for name in _imported(node):
            framework = _FRAMEWORKS.get(name.split(".")[0])
            if framework:
                yield node.lineno, f"imports {framework}"  # type: ignore[attr-defined]


def uses_data_parallel(file: File) -> bool:
    """Whether a file names `DataParallel` or `data_parallel`."""
    return first_use_of_data_parallel(file) is not None


def first_use_of_data_parallel(file: File) -> tuple[int, int] | None:
    """Line (counted over the program) and column where a file first names `DataParallel` or `data_parallel`."""
    if not any(name in file.text for name in _CONVERTED):
        return None
    uses = (node for node in ast.walk(file.tree) if _names_data_parallel(node))
    return min(((node.lineno, node.col_offset) for node in uses), default=None)  # type: ignore[attr-defined]


def _names_data_parallel(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return any(alias.name in _CONVERTED for alias in node.names)
    return isinstance(node, ast.Attribute) and node.attr in _CONVERTED


def _signs(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    checked = {id(part) for node in nodes for part in _type_checked(node)}
    aliases = {alias: line for node in nodes for alias, line in _wrapper_imports(node)}
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id in aliases]
    only_checked = {node.id for node in uses} - {node.id for node in uses if id(node) not in checked}
    for alias, line in aliases.items():
        if alias not in only_checked:
            yield line, f"imports {_WRAPPER}"
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr == _WRAPPER and id(node) not in checked:
            yield node.lineno, f"uses {_WRAPPER}"
        if isinstance(node, ast.Call) and _called(node) == _JOIN:
            yield node.lineno, f"calls {_JOIN}"


def _imported(node: ast.AST) -> Iterator[str]:
    """The full names of the modules that `node` imports, if it is an import."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        yield node.module


def _wrapper_imports(node: ast.AST) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if alias.name == _WRAPPER:
                yield alias.asname or alias.name, node.lineno


def _type_checked(node: ast.AST) -> Iterator[ast.AST]:
    """The classes that `node` checks for, if it is a call of `isinstance`."""
    if isinstance(node, ast.Call) and _called(node) in ("isinstance", "issubclass") and len(node.args) == 2:
        yield from ast.walk(node.args[1])


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""
