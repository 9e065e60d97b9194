"""How scripts spell one GPU: `"cuda:1"`, `f"cuda:{gpu}"`, `.cuda(1)`; and ask which are visible."""

from __future__ import annotations

import ast
import re

from dp2ddp.source.names import Names
from dp2ddp.source.nodes import last_name
from dp2ddp.source.program import ParsedProgram


def literal_index(node: ast.AST) -> int | None:
    """The number in `"cuda:1"` or `.cuda(1)`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        found = re.fullmatch(r"cuda:(\d+)", node.value)
        return int(found.group(1)) if found else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cuda" and node.args:
        given = node.args[0]
        return given.value if isinstance(given, ast.Constant) and type(given.value) is int else None
    return None


def index_of(node: ast.AST) -> ast.expr | None:
    """The index of the GPU that an expression spells; None for another expression."""
    if isinstance(node, ast.Constant) and literal_index(node) is not None:
        return ast.Constant(literal_index(node))
    if isinstance(node, ast.Call) and len(node.args) == 2 and last_name(node.func) == "device":
        return node.args[1]  # `torch.device("cuda", gpu)`
    first: ast.expr | None = None
    rest: list[ast.expr] = []
    if isinstance(node, ast.JoinedStr) and node.values:
        first, rest = node.values[0], [each.value for each in node.values[1:]]  # type: ignore[attr-defined]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
        first, rest = node.left, node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        first, rest = node.func.value, node.args
    is_spelled = isinstance(first, ast.Constant) and re.fullmatch(r"cuda:(\{\}|%d|%s|)", str(first.value))
    return rest[0] if is_spelled and len(rest) == 1 else None


def is_indexed(node: ast.expr) -> bool:
    """Whether an expression spells `cuda:` with an index that may be another than 0, the only one that a rank has."""
    index = index_of(node)
    return index is not None and not (isinstance(index, ast.Constant) and index.value == 0)


def is_compared(source: ParsedProgram, node: ast.expr) -> bool:
    """Whether an expression is compared with something, by itself or among others: `device in ("cpu", "cuda:0")`."""
    above = source.parent(node)
    while isinstance(above, (ast.Tuple, ast.List, ast.Set)):
        above = source.parent(above)
    return isinstance(above, ast.Compare)


def reads_visible(names: Names, node: ast.AST) -> bool:
    """Whether this is `os.environ["CUDA_VISIBLE_DEVICES"]`, or `os.environ.get(...)` or `os.getenv(...)` of it."""
    if isinstance(node, ast.Subscript):
        key, path = node.slice, names.qualified(node.value) if isinstance(node.ctx, ast.Load) else None
    elif isinstance(node, ast.Call) and node.args:
        key, path = node.args[0], names.qualified(node.func)
    else:
        return False
    is_named = isinstance(key, ast.Constant) and key.value == "CUDA_VISIBLE_DEVICES"
    return is_named and path in ("os.environ", "os.environ.get", "os.getenv")


def counts_visible(names: Names, node: ast.AST) -> bool:
    """Whether this is `len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))`."""
    if not (isinstance(node, ast.Call) and len(node.args) == 1 and names.qualified(node.func) == "builtins.len"):
        return False
    parts = node.args[0]
    is_split = isinstance(parts, ast.Call) and isinstance(parts.func, ast.Attribute) and parts.func.attr == "split"
    return is_split and reads_visible(names, parts.func.value)  # type: ignore[attr-defined]
