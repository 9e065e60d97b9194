"""Edits inside of one expression, in one pass of one libcst transformer.

libcst's tree holds every byte of the expression, so what no edit touches comes out as it was, comments and line breaks
included. The only delicate point is parentheses: what takes another's place gets them unless it holds together.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import libcst as cst
from libcst.metadata import CodePosition, CodeRange, MetadataWrapper, PositionProvider

from dp2ddp.errors import EditError, NotRewritable
from dp2ddp.rewrite.edits import HOLE, RUNTIME_USE, ReplaceExpr
from dp2ddp.source.spans import Span

#: Expressions that hold together beside an operator, before a dot, in front of brackets.
_ATOMS = (
    *(cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.SimpleString, cst.FormattedString),
    *(cst.List, cst.Dict, cst.Set, cst.ListComp, cst.DictComp, cst.SetComp),
)
#: Those that need parentheses even as an argument of a call.
_BARE = (cst.Tuple, cst.Yield, cst.NamedExpr, cst.GeneratorExp)


def rewritten(code: str, edits: Sequence[ReplaceExpr], runtime: str) -> str:
    """The expression `code` with edits carried out, in the order given where they are on the same node.

    Args:
        edits: their spans count from the beginning of `code`, which is line 1, column 0.
        runtime: what the script calls the runtime.

    Raises:
        NotRewritable: libcst can't read it, though Python can.
        EditError: an edit's span or hole is no expression, or its template is none: a rule's mistake.
    """
    # In brackets, as those around it may be what allows its line breaks.
    try:
        module = cst.parse_module(f"({code})")
    except cst.ParserSyntaxError as error:
        if not _is_expression(code):
            raise EditError(f"{edits[0].rule}: no expression there: {code!r}") from error
        raise NotRewritable(f"syntax that libcst does not know: {error.message}", error.raw_line) from error
    located = _located(module, edits)
    missing = {edit.rule for edit in edits if edit.span not in located.values()}
    if missing:
        raise EditError(f"{', '.join(sorted(missing))}: no expression there: {code!r}")
    rewriter = _Rewriter(located, edits, runtime)
    module.visit(rewriter)
    return module.code_for_node(rewriter.outermost)


def _is_expression(code: str) -> bool:
    try:
        ast.parse(f"({code})", mode="eval")
    except SyntaxError:
        return False
    return True


def _located(module: cst.Module, edits: Iterable[ReplaceExpr]) -> dict[cst.BaseExpression, Span]:
    """The nodes at the spans of edits and holes."""
    wanted = {span for edit in edits for span in (edit.span, *edit.holes.values())}
    positions: Mapping[cst.CSTNode, CodeRange] = MetadataWrapper(module, unsafe_skip_copy=True).resolve(
        PositionProvider
    )
    found: dict[Span, cst.BaseExpression] = {}
    for node, place in positions.items():
        if isinstance(node, cst.BaseExpression):
            span = _span(place.start, place.end)
            spans = [span]
            if isinstance(node, (cst.Tuple, cst.GeneratorExp)):  # `ast` counts these parentheses, or the call's
                (line, column), (end, end_column) = span
                own = Span.of(line, column - 1, end, end_column + 1)
                spans.append(_span(positions[node.lpar[-1]].start, positions[node.rpar[0]].end) if node.lpar else own)
            found.update((span, node) for span in spans if span in wanted)
    return {node: span for span, node in found.items()}


def _span(start: CodePosition, end: CodePosition) -> Span:
    """The place of what lies in the bracket that stands in front of the code."""
    return Span.of(start.line, start.column - (start.line == 1), end.line, end.column - (end.line == 1))


class _Rewriter(cst.CSTTransformer):
    """Edits each expression where it is left, when all inside of it has been edited."""

    def __init__(self, located: Mapping[cst.BaseExpression, Span], edits: Sequence[ReplaceExpr], runtime: str) -> None:
        super().__init__()
        self.outermost: cst.CSTNode = cst.Name("_")
        self._located, self._edits, self._runtime = located, edits, runtime
        self._pieces: dict[Span, cst.BaseExpression] = {}
        self._above: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        self._above.append(node)
        return True

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        self._above.pop()
        span = self._located.get(original_node) if isinstance(original_node, cst.BaseExpression) else None
        if span is None or not isinstance(updated_node, cst.BaseExpression):
            return updated_node
        is_outermost = isinstance(self._above[-1], cst.Expr)
        node = updated_node
        if is_outermost:  # without the outer pair of parentheses
            node = node.with_changes(lpar=node.lpar[1:], rpar=node.rpar[:-1])
        self._pieces[span] = node
        for edit in (each for each in self._edits if each.span == span):
            holes = {name: self._pieces[hole] for name, hole in edit.holes.items() if hole in self._pieces}
            node = self._pieces[span] = _filled(edit, holes, self._runtime)
        if is_outermost:
            self.outermost = _held(node)
        return node if node is updated_node else _held(node)


def _held(node: cst.BaseExpression, parent: cst.CSTNode | None = None) -> cst.BaseExpression:
    """The node as it can stand beside anything; as an argument, few need parentheses."""
    if node.lpar or isinstance(node, _ATOMS) or (isinstance(parent, cst.Arg) and not isinstance(node, _BARE)):
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


class _Filler(cst.CSTTransformer):
    """Puts expressions in the place of holes."""

    def __init__(self, holes: Mapping[str, cst.BaseExpression]) -> None:
        super().__init__()
        self._holes = holes
        self._above: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        self._above.append(node)
        return True

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        self._above.pop()
        hole = HOLE.fullmatch(original_node.value) if isinstance(original_node, cst.Name) else None
        if hole is None:
            return updated_node
        piece = self._holes[hole[1]]
        return _held(piece, self._above[-1]) if self._above else piece


def _filled(edit: ReplaceExpr, holes: Mapping[str, cst.BaseExpression], runtime: str) -> cst.BaseExpression:
    if set(HOLE.findall(edit.source)) != holes.keys():
        raise EditError(f"{edit.rule}: the holes {sorted(holes)} are not those of {edit.source!r}")
    filled = _parsed(RUNTIME_USE.sub(runtime, edit.source)).visit(_Filler(holes))
    assert isinstance(filled, cst.BaseExpression)
    return filled


@lru_cache(maxsize=256)
def _parsed(template: str) -> cst.BaseExpression:
    try:
        return cst.parse_expression(template)
    except cst.ParserSyntaxError as error:
        raise EditError(f"no expression: {template!r}") from error
