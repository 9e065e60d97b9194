"""How scripts spell one GPU: `"cuda:1"`, `f"cuda:{gpu}"`, `.cuda(1)`."""

from __future__ import annotations

import ast
import re

from dp2ddp.source.program import ParsedProgram

_INDEXED = re.compile(r"cuda:(\d+|\{\}|%d|%s|)$")


def literal_index(node: ast.expr) -> int | None:
    """The number in `"cuda:1"` or `.cuda(1)`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        found = re.fullmatch(r"cuda:(\d+)", node.value)
        return int(found.group(1)) if found else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cuda" and node.args:
        given = node.args[0]
        return given.value if isinstance(given, ast.Constant) and type(given.value) is int else None
    return None


def is_indexed(node: ast.expr) -> bool:
    """Whether an expression spells `cuda:` with an index that may be another than 0, the only one that a rank has."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and re.fullmatch(r"cuda:0*[1-9]\d*", node.value) is not None
    if isinstance(node, ast.JoinedStr):
        first = node.values[0] if len(node.values) == 2 else None
        return isinstance(first, ast.Constant) and first.value == "cuda:"
    if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant):
        text = node.left.value
        spells = isinstance(text, str) and _INDEXED.fullmatch(text) is not None
        return spells and isinstance(node.op, (ast.Add, ast.Mod))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        text = node.func.value.value if isinstance(node.func.value, ast.Constant) else None
        return isinstance(text, str) and text == "cuda:{}"
    return False


def is_compared(source: ParsedProgram, node: ast.expr) -> bool:
    """Whether an expression is compared with something, by itself or among others: `device in ("cpu", "cuda:0")`."""
    above = source.parent(node)
    while isinstance(above, (ast.Tuple, ast.List, ast.Set)):
        above = source.parent(above)
    return isinstance(above, ast.Compare)
