"""Where a new import goes, and by which name the script calls the runtime."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import groupby

from dp2ddp import RUNTIME_PACKAGE
from dp2ddp.rewrite.edits import RUNTIME, RUNTIME_USE, Edit, InsertAfter, InsertBefore
from dp2ddp.source.spans import Position, Span, in_characters

#: So many statements in a row, such as settings in `os.environ`, may stand between the imports of one import block.
_GAP = 4


def runtime_name(tree: ast.Module) -> str:
    """What the script is to call the runtime: as it does already, else ``ddp``, else the package's full name."""
    aliases = (alias for node in tree.body if isinstance(node, ast.Import) for alias in node.names)
    own = next((alias for alias in aliases if alias.name == RUNTIME_PACKAGE), None)
    if own is not None:
        return own.asname or RUNTIME_PACKAGE
    return RUNTIME_PACKAGE if any(RUNTIME in _names(node) for node in ast.walk(tree)) else RUNTIME


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
    before = min((edit.span.start, isinstance(edit, InsertAfter)) for edit in using)
    anchor = _anchor(tree, lines, before)
    if anchor is None:
        return [InsertBefore(RUNTIME, _span(tree.body[0], lines), "", [line])]
    is_apart = _is_docstring(anchor[0]) or (isinstance(anchor[0], ast.ImportFrom) and anchor[0].module == "__future__")
    return [InsertAfter(RUNTIME, _span(anchor[-1], lines), "", [""] * is_apart + [line])]


def _span(statement: ast.stmt, lines: Sequence[str]) -> Span:
    assert statement.end_lineno is not None
    assert statement.end_col_offset is not None
    start = Position(statement.lineno, in_characters(lines[statement.lineno - 1], statement.col_offset))
    end = Position(statement.end_lineno, in_characters(lines[statement.end_lineno - 1], statement.end_col_offset))
    return Span(start, end)


def _by_line(body: Sequence[ast.stmt]) -> list[list[ast.stmt]]:
    """Statements; those together that stand on one line (`a; b`)."""
    return [list(row) for _, row in groupby(body, key=lambda statement: statement.lineno)]


def _anchor(tree: ast.Module, lines: Sequence[str], before: tuple[Position, bool]) -> list[ast.stmt] | None:
    """The last statements of the import block at the file's top, before the first use."""
    found = None
    gap = 0
    for index, row in enumerate(_by_line(tree.body)):
        if not _is_above(_span(row[-1], lines), *before):
            break
        if _is_import_block(row) or (index == 0 and _is_docstring(row[0])):
            found, gap = row, 0
        elif not hasattr(row[-1], "body") and not hasattr(row[-1], "cases") and gap < _GAP:
            gap += not _is_about_file(row[0])
        else:
            break
    return found


def _is_above(statement: Span, use: Position, comes_after: bool) -> bool:
    """Whether what is inserted behind a statement comes before the first use, which may lie in the statement itself."""
    return (comes_after and statement.start == use) or statement.end <= use


def _is_import_block(row: Sequence[ast.stmt]) -> bool:
    """Whether statements on a line are an import, or a `try` that holds nothing else worth the name."""
    if any(isinstance(statement, (ast.Import, ast.ImportFrom)) for statement in row):
        return True
    return isinstance(row[0], ast.Try) and all(map(_is_import_block, _by_line(row[0].body)))


def _is_about_file(statement: ast.stmt) -> bool:
    """Whether it is text, or a name such as `__author__`: PEP 8 has them above the imports."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return _is_docstring(statement) or any(isinstance(each, ast.Name) and each.id[:2] == "__" for each in targets)


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, (str, bytes))
    )
