"""Where a new import goes, and by which name the script calls the runtime."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from dp2ddp import RUNTIME_PACKAGE
from dp2ddp.rewrite.edits import RUNTIME, RUNTIME_USE, Edit, InsertAfter, InsertBefore
from dp2ddp.source.nodes import is_main_guard
from dp2ddp.source.spans import Position, Span, in_characters

#: What may stand between imports: settings that have to come before the next one; and how their values are computed.
_SETTINGS = ("sys.", "os.environ", "os.putenv", "warnings.", "matplotlib.use", "print")
_COMPUTED = ("os.", "sys.", "pathlib.", "Path", "str", "int")


def runtime_name(tree: ast.Module, text: str) -> str:
    """What the script is to call the runtime: as it does already, else ``ddp``, else the package's full name."""
    aliases = (alias for node in tree.body if isinstance(node, ast.Import) for alias in node.names)
    own = next((alias for alias in aliases if alias.name == RUNTIME_PACKAGE), None)
    if own is not None:
        return own.asname or RUNTIME_PACKAGE
    is_taken = RUNTIME in text and any(RUNTIME in _names(node) for node in ast.walk(tree))
    return RUNTIME_PACKAGE if is_taken else RUNTIME


def _names(node: ast.AST) -> Sequence[str | None]:
    """The script's own names that a node says: no attributes, and none of arguments that it gives."""
    if isinstance(node, (ast.Global, ast.Nonlocal)):
        return node.names
    if isinstance(node, (ast.alias, ast.arg)):
        return [node.asname, node.name.split(".")[0]] if isinstance(node, ast.alias) else [node.arg]
    return [getattr(node, name, None) for name in ("id", "name", "rest")]


def import_edits(tree: ast.Module, lines: Sequence[str], edits: Sequence[Edit], runtime: str) -> list[Edit]:
    """The edit that imports the runtime, where `edits` call it and the script doesn't import it yet.

    Args:
        tree: the script's.
        lines: its lines.
        runtime: what it calls the runtime.
    """
    using = [edit for edit in edits if RUNTIME_USE.search(edit.source)]
    imports = (alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names)
    if not using or RUNTIME_PACKAGE in imports:
        return []
    line = f"import {RUNTIME_PACKAGE}" if runtime == RUNTIME_PACKAGE else f"import {RUNTIME_PACKAGE} as {runtime}"
    # From where on it is needed; lines inserted after a statement come after it.
    first, comes_after = min((edit.span.start.line, isinstance(edit, InsertAfter)) for edit in using)
    above = last_import(tree, lambda each: each.lineno + (not comes_after) > first or _is_around(each, first))
    if above is None:
        return [InsertBefore(RUNTIME, _span(tree.body[0], lines), "", [line])]
    is_apart = is_text(above) or (isinstance(above, ast.ImportFrom) and above.module == "__future__")
    return [InsertAfter(RUNTIME, _span(above, lines), "", [""] * is_apart + [line])]


def _span(statement: ast.stmt, lines: Sequence[str]) -> Span:
    assert statement.end_lineno is not None
    assert statement.end_col_offset is not None
    start = Position(statement.lineno, in_characters(lines[statement.lineno - 1], statement.col_offset))
    end = Position(statement.end_lineno, in_characters(lines[statement.end_lineno - 1], statement.end_col_offset))
    return Span(start, end)


def _is_around(statement: ast.stmt, line: int) -> bool:
    return statement.lineno < line <= (statement.end_lineno or 0)


def last_import(tree: ast.Module, stops: Callable[[ast.stmt], bool]) -> ast.stmt | None:
    """The last of the imports on top of a file, else its docstring; None where it has neither.

    Args:
        stops: tells of a statement whether the block ends above it.
    """
    found = None
    for statement in tree.body:
        if stops(statement):
            break
        if _holds_imports(statement) or (found is None and is_text(statement)):
            found = statement
        elif not _is_setting(statement):
            break
    return found


def is_text(statement: ast.stmt) -> bool:
    """Whether it is a text by itself, such as a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _holds_imports(statement: ast.stmt) -> bool:
    """Whether it is an import, or chooses between imports (`try`, `if`) and does nothing else."""
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return True
    if not isinstance(statement, (ast.Try, ast.If)) or is_main_guard(statement):
        return False
    others = [each for each in statement.body if not _is_setting(each)]
    return bool(others) and all(map(_holds_imports, others))


def _is_setting(statement: ast.stmt) -> bool:
    """Whether it only sets something up for the imports below: `os.environ[...] = ...`, `sys.path.append(...)`."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func).startswith(_SETTINGS)
    calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call)] if isinstance(statement, ast.Assign) else None
    return is_text(statement) or (calls is not None and all(ast.unparse(n.func).startswith(_COMPUTED) for n in calls))
