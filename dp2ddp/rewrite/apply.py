"""Carries out all edits of a file in one pass of one libcst transformer.

The nodes to edit are found by position; then everything is by node: no other metadata, no pass per rule. What no edit
touches comes out byte for byte, because libcst's tree holds every byte of the source.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Union

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from dp2ddp.errors import EditError, NotRewritable
from dp2ddp.rewrite import templates
from dp2ddp.rewrite.aligned import Place, aligned
from dp2ddp.rewrite.edits import (
    AddImport,
    Done,
    Edit,
    InsertAfter,
    InsertBefore,
    RemoveStatement,
    ReplaceStatement,
    WithHoles,
    WithLines,
)
from dp2ddp.rewrite.imports import import_edits, runtime_name
from dp2ddp.rewrite.locate import Located, Positions, locate, show
from dp2ddp.rewrite.statements import comments_inside, fold, insert_above, replace, split_line
from dp2ddp.rewrite.templates import Holes, leading, marker, with_leading
from dp2ddp.rewrite.untouched import lines_of, shortened

_Block = Union[cst.IndentedBlock, cst.Module]
_WITH_BODY = (cst.If, cst.For, cst.While, cst.Try, cst.TryStar, cst.Else)
_NEWLINE = re.compile(r"\r\n|\r|\n")
_PASS = cst.SimpleStatementLine(body=[cst.Pass()])


def apply(text: str, edits: Sequence[Edit]) -> str:
    """The source `text` with `edits` carried out.

    Without edits the text comes back as it is. A byte order mark and any mix of newlines are kept.

    Args:
        text: valid Python source.
        edits: in any order; those on the same node compose in the order given.

    Raises:
        NotRewritable: libcst can't read the source, or not keep it, though Python can read it.
        EditError: an edit's span or hole is no node, or its template is no Python: a rule's mistake.
    """
    edits = [edit for edit in edits if not isinstance(edit, Done)]
    if not edits:
        return text
    head, body, tail, tree = _split(text)
    runtime = runtime_name(tree)
    lines = lines_of(body)
    edits = [*import_edits(tree, lines, edits, runtime), *(each for each in edits if not isinstance(each, AddImport))]
    short = shortened(body, lines, tree, edits)
    module, positions, places = _parse(short.text)
    located = locate(positions, edits)
    rewriter = _Rewriter(located, runtime)
    changed = module.visit(rewriter)
    for node, asked in located.statements.items():
        if asked and node not in rewriter.whole:
            raise EditError(f"{asked[0].rule}: the statement at {show(asked[0].span)} is an `elif`; edit its `if`")
    return head + short.whole(aligned(changed, places)[0]) + tail


def _parse(body: str) -> tuple[cst.Module, Positions, Mapping[int, Place]]:
    try:
        module = cst.parse_module(body)
    except cst.ParserSyntaxError as error:
        raise NotRewritable(f"syntax that libcst does not know: {error.message}", error.raw_line) from error
    code, places = aligned(module)
    if code != body:
        pairs = enumerate(zip(body, code))
        same = next((index for index, (kept, given) in pairs if kept != given), min(len(body), len(code)))
        line = len(_NEWLINE.findall(body[:same])) + 1
        raise NotRewritable("white space that libcst does not keep, such as a form feed before a statement", line)
    return module, MetadataWrapper(module, unsafe_skip_copy=True).resolve(PositionProvider), places


def _split(text: str) -> tuple[str, str, str, ast.Module]:
    """What comes before the code (byte order mark, form feeds), the code, and what comes after its last statement; and
    the code's syntax tree.

    libcst would lose some of the white space outside.
    """
    head = text[: len(text) - len(text.lstrip("\ufeff\f"))]
    tree = ast.parse(text[len(head) :])
    last = (tree.body[-1].end_lineno or 0) if tree.body else 0
    ends = (match.start() for number, match in enumerate(_NEWLINE.finditer(text), start=1) if number == last)
    end = next(ends, len(text))
    return head, text[len(head) : end], text[end:], tree


class _Rewriter(cst.CSTTransformer):
    """Expressions are edited where they are left; statements where the block around them is left."""

    def __init__(self, located: Located, runtime: str) -> None:
        super().__init__()
        self.located = located
        self.runtime = runtime
        self.above: list[cst.CSTNode] = []
        self.pieces: dict[int, cst.BaseExpression] = {}
        self.whole: dict[int, cst.BaseStatement] = {}
        # Blocks that are left empty, and whether their `if` may go as well; what goes is in `dropped`.
        self.emptied: dict[int, bool] = {}
        self.dropped: set[int] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        self.above.append(node)
        return True

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override]
        self.above.pop()
        if id(original_node) in self.located.expressions:
            assert isinstance(original_node, cst.BaseExpression)
            assert isinstance(updated_node, cst.BaseExpression)
            return self._expression(original_node, updated_node)
        if isinstance(original_node, cst.ParenthesizedWhitespace):
            return original_node  # the very same, by which its place is known
        if isinstance(original_node, cst.FormattedString) and isinstance(updated_node, cst.FormattedString):
            return _keep_labels(original_node, updated_node)
        if isinstance(original_node, (cst.Module, cst.IndentedBlock)):
            return self._block(original_node, updated_node)  # type: ignore[arg-type]
        if isinstance(original_node, cst.SimpleStatementSuite):
            return self._suite(original_node, updated_node)  # type: ignore[arg-type]
        if isinstance(original_node, _WITH_BODY):
            return self._branch(original_node, updated_node)
        return updated_node

    def _expression(self, original: cst.BaseExpression, updated: cst.BaseExpression) -> cst.BaseExpression:
        """`updated` with the edits on it applied in order; kept aside where a hole asks for it."""
        edits = self.located.expressions[id(original)]
        around, node = templates.split_parentheses(updated, id(original) in self.located.with_parentheses)
        for edit in edits:
            self.pieces[id(original)] = node
            node = templates.expression(edit.template, self._holes(edit), self.runtime)
        node = templates.put(node, self.above[-1], around) if edits else updated
        self.pieces[id(original)] = node
        return node

    def _holes(self, edit: WithHoles) -> Holes:
        expressions, statements = {}, {}
        for name in edit.holes:
            node = id(self.located.hole(edit, name))
            if node in self.pieces:
                expressions[name] = self.pieces[node]
            elif node in self.whole:
                statements[name] = self.whole[node]
            else:
                raise EditError(f"{edit.rule}: the hole {name!r} stands after the place where it is used")
        return Holes(expressions, statements)

    def _lines(self, edit: WithLines) -> list[cst.BaseStatement]:
        return templates.statements(edit.lines, self._holes(edit), self.runtime)

    def _block(self, original: _Block, updated: _Block) -> _Block:
        """A block, or the module, with the edits on its statements."""
        statements: list[cst.BaseStatement] = []
        may_drop = False
        for before, after in zip(original.body, updated.body):
            statements += self._statement(before, after)
            may_drop |= self._may_drop(before)
        if len(statements) == len(updated.body) and all(map(operator.is_, statements, updated.body)):
            return updated
        folded = fold(statements)
        if folded.body or isinstance(original, cst.Module):
            return updated.with_changes(body=folded.body, footer=[*folded.comments, *updated.footer])
        self.emptied[id(original)] = may_drop
        return updated.with_changes(body=[with_leading(_PASS, folded.comments)])

    def _suite(self, original: cst.SimpleStatementSuite, updated: cst.SimpleStatementSuite) -> cst.BaseSuite:
        """The rest of ``if a: b; c``: a block of its own, where there are edits on its statements."""
        if not any(id(small) in self.located.statements for small in original.body):
            return updated
        line = cst.SimpleStatementLine(original.body, trailing_whitespace=updated.trailing_whitespace)
        folded = fold(self._statement(line, line.with_changes(body=updated.body)))
        if not folded.body:
            self.emptied[id(original)] = any(self._may_drop_small(small) for small in original.body)
            return updated.with_changes(body=[cst.Pass()])
        return cst.IndentedBlock(body=folded.body, footer=folded.comments)

    def _branch(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        """A compound statement, or an ``else``, whose block may have been left empty."""
        may_drop = self.emptied.get(id(original.body), False)  # type: ignore[attr-defined]
        orelse = getattr(original, "orelse", None)
        if orelse is not None and id(orelse) in self.dropped:
            updated, orelse = updated.with_changes(orelse=None), None
        if may_drop and orelse is None and isinstance(original, (cst.If, cst.Else)):
            self.dropped.add(id(original))
        return updated

    def _may_drop(self, statement: cst.BaseStatement) -> bool:
        """Whether `statement`, which is gone, lets the `if` around it go, too."""
        if isinstance(statement, cst.SimpleStatementLine):
            return any(self._may_drop_small(small) for small in statement.body)
        return id(statement) in self.dropped or self._may_drop_small(statement)

    def _may_drop_small(self, statement: cst.CSTNode) -> bool:
        edits = self.located.statements.get(id(statement), ())
        return any(isinstance(edit, RemoveStatement) and edit.drop_empty_if for edit in edits)

    def _statement(self, original: cst.BaseStatement, updated: cst.BaseStatement) -> list[cst.BaseStatement]:
        """What stands in the place of one statement, or line of statements; a marker where it is removed."""
        if isinstance(original, cst.SimpleStatementLine):
            assert isinstance(updated, cst.SimpleStatementLine)
            pieces = split_line(original, updated, self.located.statements)
            return [new for piece in pieces for new in self._compose(piece.originals, piece.line)]
        if id(original) in self.dropped:
            updated = marker([*leading(updated), *comments_inside(updated)])
        return self._compose([original], updated)

    def _compose(self, originals: Sequence[cst.CSTNode], updated: cst.BaseStatement) -> list[cst.BaseStatement]:
        """`updated` with the edits on `originals`, the statements on its line, applied in order."""
        located = [id(original) for original in originals if id(original) in self.located.statements]
        if not located:
            return [updated]
        self.whole.update((node, updated) for node in located)
        before: list[cst.BaseStatement] = []
        core = [updated]
        after: list[cst.BaseStatement] = []
        for edit in (edit for node in located for edit in self.located.statements[node]):
            if isinstance(edit, InsertBefore):
                before += self._lines(edit)
            elif isinstance(edit, InsertAfter):
                after += self._lines(edit)
            elif isinstance(edit, ReplaceStatement):
                core = replace(core, self._lines(edit))
            else:
                core = [marker(leading(core[0]))]
        return [*insert_above(before, core), *after]


def _keep_labels(original: cst.FormattedString, updated: cst.FormattedString) -> cst.FormattedString:
    """`updated` with the text that `{x=}` showed where its expression has been edited."""
    parts = [part for pair in zip(original.parts, updated.parts) for part in _labelled(*pair)]
    return updated if len(parts) == len(updated.parts) else updated.with_changes(parts=parts)


def _labelled(
    original: cst.BaseFormattedStringContent, updated: cst.BaseFormattedStringContent
) -> Iterator[cst.BaseFormattedStringContent]:
    if (
        isinstance(original, cst.FormattedStringExpression)
        and isinstance(updated, cst.FormattedStringExpression)
        and original.equal is not None
        and not original.expression.deep_equals(updated.expression)
    ):
        shown = original.with_changes(conversion=None, format_spec=None)
        code = cst.Module(body=()).code_for_node(shown)
        yield cst.FormattedStringText(code[1:-1].replace("{", "{{").replace("}", "}}"))
        plain = updated.conversion is None and updated.format_spec is None
        yield updated.with_changes(equal=None, conversion="r" if plain else updated.conversion)
    else:
        yield updated
