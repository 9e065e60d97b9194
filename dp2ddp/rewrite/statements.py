"""Lists of statements: splitting lines, wrapping, inserting, removing; comments and blank lines stay in their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import libcst as cst

from dp2ddp.rewrite.edits import InsertAfter, InsertBefore
from dp2ddp.rewrite.locate import StatementEdit
from dp2ddp.rewrite.templates import leading, marker, with_leading


class Piece(NamedTuple):
    """A line of statements, and the original nodes of those on it."""

    originals: Sequence[cst.CSTNode]
    line: cst.BaseStatement


class Folded(NamedTuple):
    """Statements without markers, and the comments left over after the last one."""

    body: list[cst.BaseStatement]
    comments: list[cst.EmptyLine]


def fold(statements: Sequence[cst.BaseStatement]) -> Folded:
    """`statements` without markers; what a marker holds goes above the next statement."""
    body: list[cst.BaseStatement] = []
    pending: list[cst.EmptyLine] = []
    for statement in statements:
        if is_marker(statement):
            pending = _join(pending, leading(statement))
        else:
            body.append(with_leading(statement, _join(pending, leading(statement))) if pending else statement)
            pending = []
    return Folded(body, pending if any(line.comment for line in pending) else [])


def is_marker(statement: cst.BaseStatement) -> bool:
    """Whether `statement` is a marker: comments and blank lines only."""
    return isinstance(statement, cst.SimpleStatementLine) and not statement.body


def split_line(
    original: cst.SimpleStatementLine,
    updated: cst.SimpleStatementLine,
    edits: Mapping[int, Sequence[StatementEdit]],
) -> list[Piece]:
    """``a; b; c`` as several lines where something comes between, or a statement is to stand alone."""
    runs: list[list[tuple[cst.CSTNode, cst.BaseSmallStatement]]] = []
    cut = True
    for before, after in zip(original.body, updated.body):
        cut_before, cut_after = _cuts(edits.get(id(before)))
        if cut or cut_before:
            runs.append([])
        runs[-1].append((before, after))
        cut = cut_after
    if len(runs) == 1:
        return [Piece(original.body, updated)]
    return [
        Piece([old for old, _ in run], _line([new for _, new in run], updated, i == 0, i == len(runs) - 1))
        for i, run in enumerate(runs)
    ]


def _cuts(edits: Sequence[StatementEdit] | None) -> tuple[bool, bool]:
    """Whether a statement with these edits must begin its line, and whether it must end it."""
    if edits is None:
        return False, False
    if not edits:  # it fills a hole as a whole
        return True, True
    return (
        not all(isinstance(edit, InsertAfter) for edit in edits),
        not all(isinstance(edit, InsertBefore) for edit in edits),
    )


def _line(
    run: Sequence[cst.BaseSmallStatement], whole: cst.SimpleStatementLine, first: bool, last: bool
) -> cst.SimpleStatementLine:
    if not last:
        run = [*run[:-1], run[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]
    return cst.SimpleStatementLine(
        body=run,
        leading_lines=whole.leading_lines if first else (),
        trailing_whitespace=whole.trailing_whitespace if last else cst.TrailingWhitespace(),
    )


def insert_above(before: Sequence[cst.BaseStatement], core: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """`before` and then `core`: below the blank lines above `core`, above its comments, which keep a blank line."""
    if not before:
        return list(core)
    lines = leading(core[0])
    comment = next((i for i, line in enumerate(lines) if line.comment), len(lines))
    first = with_leading(before[0], [*lines[:comment], *leading(before[0])])
    blank = lines[:comment][-1:] if comment < len(lines) and not is_marker(before[-1]) else []
    return [first, *before[1:], with_leading(core[0], [*blank, *lines[comment:]]), *core[1:]]


def replace(core: Sequence[cst.BaseStatement], new: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """`new` with the comments above `core`, and with the comment at its end where both end in simple statements."""
    if not new:
        return [marker(leading(core[0]))]
    new[0] = with_leading(new[0], [*leading(core[0]), *leading(new[0])])
    old, last = core[-1], new[-1]
    both_simple = isinstance(old, cst.SimpleStatementLine) and isinstance(last, cst.SimpleStatementLine)
    if both_simple and not is_marker(last) and last.trailing_whitespace.comment is None:  # type: ignore[attr-defined]
        new[-1] = last.with_changes(trailing_whitespace=old.trailing_whitespace)  # type: ignore[attr-defined]
    return new


def comments_inside(statement: cst.BaseStatement) -> list[cst.EmptyLine]:
    """The comments in the block of `statement`, which has no statements left."""
    block = statement.body  # type: ignore[attr-defined]
    if not isinstance(block, cst.IndentedBlock):
        return []
    return [line for line in (*leading(block.body[0]), *block.footer) if line.comment]


def _join(above: Sequence[cst.EmptyLine], below: Sequence[cst.EmptyLine]) -> list[cst.EmptyLine]:
    """`above` and `below`, without doubling the blank lines between them."""
    if below and not below[0].comment:
        kept = list(above)
        while kept and not kept[-1].comment:
            kept.pop()
        return [*kept, *below]
    return [*above, *below]
