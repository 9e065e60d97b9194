"""How scripts spell one GPU: `"cuda:1"`, `f"cuda:{gpu}"`, `.cuda(1)`."""

from __future__ import annotations

import ast
import re

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
    """The index that an expression spells behind `cuda:`; None for another expression."""
    if isinstance(node, ast.Constant):
        found = literal_index(node)
        return None if found is None else ast.Constant(found)
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
