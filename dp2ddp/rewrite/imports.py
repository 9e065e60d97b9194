"""Where a new import goes, and by which name the script calls the runtime."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import libcst as cst

from dp2ddp import RUNTIME_PACKAGE
from dp2ddp.errors import EditError
from dp2ddp.rewrite.edits import RUNTIME, AddImport, Edit, InsertAfter, InsertBefore
from dp2ddp.rewrite.locate import Located, Positions, template_of
from dp2ddp.rewrite.templates import uses_runtime
from dp2ddp.source.spans import Position, Span

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


def place_imports(
    module: cst.Module, tree: ast.Module, positions: Positions, located: Located, edits: Sequence[Edit], runtime: str
) -> None:
    """Enters into `located` the statements that add the imports which `edits` ask for, or need for the runtime.

    Args:
        module, tree: the source, which `positions` are of, as both libraries have it.
    """
    known = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    asked = [edit for edit in edits if isinstance(edit, AddImport)]
    wanted = list(asked)
    using = [edit for edit in edits if hasattr(edit, "holes") and uses_runtime(template_of(edit))]  # type: ignore[arg-type]
    if using and not any(edit.module == RUNTIME_PACKAGE for edit in wanted):
        wanted.append(AddImport(using[0].rule, using[0].span, "the script calls the runtime"))
    lines = [_line(edit, runtime) for edit in wanted if edit.module not in known]
    if not lines:
        return
    users = using if all(edit.module == RUNTIME_PACKAGE for edit in wanted) else edits
    # From where on one may be needed; lines inserted after a statement come after it.
    needing = (edit for edit in [*asked, *users] if edit in asked or hasattr(edit, "holes"))
    before = min(((edit.span.start, isinstance(edit, InsertAfter)) for edit in needing), default=None)
    _insert(module, positions, located, list(dict.fromkeys(lines)), before)


def _line(edit: AddImport, runtime: str) -> str:
    """The import statement that `edit` asks for."""
    alias = runtime if edit.module == RUNTIME_PACKAGE else edit.alias
    return f"import {edit.module}" if alias in (None, edit.module) else f"import {edit.module} as {alias}"


def _insert(
    module: cst.Module,
    positions: Positions,
    located: Located,
    lines: list[str],
    before: tuple[Position, bool] | None,
) -> None:
    anchor = _anchor(module, positions, before)
    nowhere = Span.of(1, 0, 1, 0)
    new: InsertBefore | InsertAfter
    if anchor is not None:
        node: cst.CSTNode = anchor
        if _is_docstring(anchor) or _is_future(anchor):
            lines = ["", *lines]
        new = InsertAfter(RUNTIME, nowhere, "", lines)
    elif module.body:
        node = module.body[0]
        new = InsertBefore(RUNTIME, nowhere, "", lines)
    else:
        raise EditError("an edit of a script without statements")
    if isinstance(node, cst.SimpleStatementLine):
        node = node.body[-1] if isinstance(new, InsertAfter) else node.body[0]
    located.statements.setdefault(id(node), []).insert(0, new)


def _anchor(
    module: cst.Module, positions: Positions, before: tuple[Position, bool] | None
) -> cst.SimpleStatementLine | cst.BaseCompoundStatement | None:
    """The last statement of the import block at the file's top, before the first use."""
    found = None
    gap = 0
    for index, statement in enumerate(module.body):
        if before is not None and not _is_above(statement, positions, *before):
            break
        if _is_import_block(statement) or (index == 0 and _is_docstring(statement)):
            found, gap = statement, 0
        elif isinstance(statement, cst.SimpleStatementLine) and gap < _GAP:
            gap += 1
        else:
            break
    return found


def _is_above(statement: cst.BaseStatement, positions: Positions, use: Position, comes_after: bool) -> bool:
    """Whether what is inserted behind `statement` comes before the first use, which may lie in the statement itself."""
    last = statement.body[-1] if isinstance(statement, cst.SimpleStatementLine) else statement
    start, end = positions[last].start, positions[last].end
    if comes_after and Position(start.line, start.column) == use:
        return True
    return Position(end.line, end.column) <= use


def _is_import_block(statement: cst.BaseStatement) -> bool:
    """Whether `statement` is an import, or a `try` or `if` that holds nothing else worth the name."""
    if isinstance(statement, cst.SimpleStatementLine):
        return any(isinstance(small, (cst.Import, cst.ImportFrom)) for small in statement.body)
    if isinstance(statement, cst.Try):
        return all(_is_import_block(inner) for inner in statement.body.body if isinstance(inner, cst.BaseStatement))
    return False


def _is_docstring(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    first = statement.body[0]
    return isinstance(first, cst.Expr) and isinstance(first.value, (cst.SimpleString, cst.ConcatenatedString))


def _is_future(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    first = statement.body[0]
    return (
        isinstance(first, cst.ImportFrom)
        and not first.relative
        and isinstance(first.module, cst.Name)
        and first.module.value == "__future__"
    )
