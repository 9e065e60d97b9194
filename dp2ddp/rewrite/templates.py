"""Templates with holes: parsing them once, and filling the holes with pieces of the user's source.

The only delicate point is parentheses. A piece that moves, or an expression that takes another's place, gets them
beside operators, and where it holds a line break that only the brackets around its old place allowed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

import libcst as cst

from dp2ddp.errors import EditError
from dp2ddp.rewrite.edits import RUNTIME

_RUNTIME_USE = re.compile(rf"(?<![\w.]){RUNTIME}(?=\.)")
_HOLE = re.compile(r"__h_(\w+?)__")

#: Expressions that may be torn apart by what stands beside them; all others hold together.
_LOOSE = (
    *(cst.BinaryOperation, cst.BooleanOperation, cst.UnaryOperation, cst.Comparison),
    *(cst.Lambda, cst.IfExp, cst.Await),
)
#: What would do so.
_TEARING = (
    *(*_LOOSE, cst.ComparisonTarget, cst.Attribute, cst.Subscript, cst.Call, cst.Decorator),
    *(cst.CompFor, cst.CompIf, cst.StarredElement, cst.StarredDictElement),
)
#: Expressions that stand without parentheses by themselves alone, and where two of them do.
_BARE = (cst.Tuple, cst.Yield, cst.NamedExpr, cst.GeneratorExp, cst.StarredElement)
_BY_THEMSELVES = (cst.Expr, cst.Return, cst.Assign, cst.AugAssign, cst.For)
_BRACKETED = (cst.Arg, cst.DictElement, cst.SubscriptElement, cst.Index)

Node = TypeVar("Node", bound=cst.CSTNode)


class Holes(NamedTuple):
    """What fills a template: expressions, and whole statements where a line is nothing but a hole."""

    expressions: Mapping[str, cst.BaseExpression]
    statements: Mapping[str, cst.BaseStatement]


def uses_runtime(template: str) -> bool:
    """Whether the template calls the runtime."""
    return _RUNTIME_USE.search(template) is not None


def hole_names(template: str) -> set[str]:
    """The names of the holes in `template`."""
    return set(_HOLE.findall(template))


def is_hole_line(lines: Sequence[str], name: str) -> bool:
    """Whether one of the lines is nothing but the hole `name`."""
    return any(line.strip() == f"__h_{name}__" for line in lines)


def expression(template: str, holes: Holes, runtime: str) -> cst.BaseExpression:
    """The expression that `template` makes with `holes`; `runtime` is what the script calls the runtime.

    Raises:
        EditError: the template is no Python expression.
    """
    return _fill(_parse_expression(_RUNTIME_USE.sub(runtime, template)), holes, as_line=False)


def statements(lines: Sequence[str], holes: Holes, runtime: str) -> list[cst.BaseStatement]:
    """The statements that `lines` make with `holes`.

    Comments and empty lines at the end come as a marker (see `marker`).

    Raises:
        EditError: the lines are no Python statements.
    """
    module = _parse_lines(_RUNTIME_USE.sub(runtime, "".join(f"{line}\n" for line in lines)))
    made: list[cst.BaseStatement] = []
    lead = list(module.header)
    for statement in module.body:
        whole = _statement_hole(statement, holes)
        new = whole if whole is not None else _fill(statement, holes, as_line=True)
        made.append(with_leading(new, [*lead, *leading(new)]) if lead else new)
        lead = []
    tail = [*lead, *module.footer]
    return [*made, marker(tail)] if tail else made


def marker(lines: Sequence[cst.EmptyLine]) -> cst.SimpleStatementLine:
    """Comments and blank lines without a statement: a line with an empty body, which no parsed source contains."""
    return cst.SimpleStatementLine(body=(), leading_lines=lines)


def leading(statement: cst.BaseStatement) -> list[cst.EmptyLine]:
    """The blank lines and comments above a statement."""
    lines: Sequence[cst.EmptyLine] = statement.leading_lines  # type: ignore[attr-defined]
    return list(lines)


def with_leading(statement: cst.BaseStatement, lines: Sequence[cst.EmptyLine]) -> cst.BaseStatement:
    """`statement` with `lines` above it in place of its own."""
    changed: cst.BaseStatement = statement.with_changes(leading_lines=lines)
    return changed


def split_parentheses(node: cst.BaseExpression, own: bool) -> tuple[cst.BaseExpression, cst.BaseExpression]:
    """`node`'s outer parentheses, as a stand-in that has no others, and `node` without them.

    With `own` the innermost pair belongs to the node: those of a tuple or a generator.
    """
    outer = len(node.lpar) - own
    around = cst.Name("_", lpar=node.lpar[:outer], rpar=node.rpar[len(node.rpar) - outer :])
    return around, node.with_changes(lpar=node.lpar[outer:], rpar=node.rpar[: len(node.rpar) - outer])


def put(
    new: cst.BaseExpression, parent: cst.CSTNode, around: cst.BaseExpression | None = None, *, as_line: bool = True
) -> cst.BaseExpression:
    """`new` as it has to be written in `parent`: in the parentheses of `around`, or in new ones.

    Args:
        as_line: whether that is a part of a line; a part of an expression gets its line breaks looked at later.
    """
    if around is not None and around.lpar:
        return new.with_changes(lpar=[*around.lpar, *new.lpar], rpar=[*new.rpar, *around.rpar])
    breaks = as_line and not isinstance(parent, _BRACKETED) and _breaks_the_line(new)
    if new.lpar or not (breaks or _is_torn(new, parent)):
        return new
    return new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


@lru_cache(maxsize=256)
def _parse_expression(template: str) -> cst.BaseExpression:
    try:
        return cst.parse_expression(template)
    except cst.ParserSyntaxError as error:
        raise EditError(f"no expression: {template!r}") from error


@lru_cache(maxsize=256)
def _parse_lines(text: str) -> cst.Module:
    try:
        return cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise EditError(f"no statements: {text!r}") from error


def _statement_hole(statement: cst.BaseStatement, holes: Holes) -> cst.BaseStatement | None:
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    only = statement.body[0]
    name = _hole_name(only.value) if isinstance(only, cst.Expr) else None
    return holes.statements.get(name) if name else None


def _hole_name(node: cst.CSTNode) -> str | None:
    match = _HOLE.fullmatch(node.value) if isinstance(node, cst.Name) else None
    return match.group(1) if match else None


class _Filler(cst.CSTTransformer):
    """Puts expressions and statements in the place of holes."""

    def __init__(self, holes: Holes, as_line: bool) -> None:
        super().__init__()
        self.holes = holes
        self.as_line = as_line
        self.above: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        self.above.append(node)
        return True

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        self.above.pop()
        if isinstance(updated_node, cst.IndentedBlock):
            return self._block(updated_node)
        name = _hole_name(original_node)
        piece = self.holes.expressions.get(name) if name else None
        if piece is None:
            return updated_node
        if not self.above:
            return piece
        return put(piece, self.above[-1], as_line=self.as_line)

    def _block(self, block: cst.IndentedBlock) -> cst.IndentedBlock:
        return block.with_changes(body=[_statement_hole(s, self.holes) or s for s in block.body])


def _fill(node: Node, holes: Holes, *, as_line: bool) -> Node:
    if not holes.expressions and not holes.statements:
        return node
    filled = node.visit(_Filler(holes, as_line))
    assert isinstance(filled, cst.CSTNode)
    return filled


def _is_torn(new: cst.BaseExpression, parent: cst.CSTNode) -> bool:
    """Whether an expression may have to have parentheses in a node: sometimes it gets some that are only plain."""
    if isinstance(new, _BARE):
        return not (isinstance(new, (cst.Tuple, cst.Yield)) and isinstance(parent, _BY_THEMSELVES))
    if isinstance(new, _LOOSE) and isinstance(parent, _TEARING):
        return True
    return isinstance(new, cst.Integer) and isinstance(parent, cst.Attribute)


def _breaks_the_line(node: cst.BaseExpression) -> bool:
    """Whether `node` has a line break that only brackets around it allow."""
    code = _code(node)
    if "\n" not in code and "\r" not in code:
        return False
    try:
        ast.parse(code, mode="eval")
    except SyntaxError:
        return True
    return False


def _code(node: cst.CSTNode) -> str:
    return cst.Module(body=()).code_for_node(node)
