"""One script from text to text: parse, plan, rewrite."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dp2ddp import refusals
from dp2ddp.analysis.source import Source, parse
from dp2ddp.edits import Edit, InsertBefore, Note
from dp2ddp.errors import BadInput, EditError, NotRewritable
from dp2ddp.plan import StrategyDecision, plan
from dp2ddp.rewrite import apply
from dp2ddp.rules import Options, all_rules


@dataclass(frozen=True)
class Conversion:
    """What became of a script.

    Attributes:
        new_text: the converted source; the original where nothing changed.
        edits: every change, in the order of the source.
        notes: what a person has to look at, in the order of the source.
        strategies: the strategy of each wrapped model, and why.
        changed: whether `new_text` differs from the original.
        converted_before: the script calls the runtime already, and was left as it is.
    """

    new_text: str
    edits: Sequence[Edit] = ()
    notes: Sequence[Note] = ()
    strategies: Sequence[StrategyDecision] = ()
    changed: bool = False
    converted_before: bool = False


def convert_source(text: str, filename: str, options: Options) -> Conversion:
    """Converts the source `text`, which has no byte order mark.

    Args:
        filename: for messages only.

    Raises:
        BadInput: no Python, a script that sets up distributed training itself, or an unknown rule in `options`.
        EditError: a mistake in dp2ddp.
    """
    check_rules(options)
    source = parse(text, filename)
    if refusals.is_converted(source.tree):
        return Conversion(text, converted_before=True)
    refusals.refuse(source.tree, filename)
    planned = plan(source, options)
    notes = sorted(planned.notes, key=lambda note: note.span)
    if sys.version_info < (3, 10):
        _refuse_misplaced(source, planned.edits)
    edits = [*planned.edits, *(_comment(note, source) for note in notes if options.annotate)]
    new_text = _rewrite(text, filename, edits)
    return Conversion(
        new_text,
        edits=sorted(planned.edits, key=lambda edit: edit.span.start),
        notes=notes,
        strategies=planned.strategies,
        changed=new_text != text,
    )


def check_rules(options: Options) -> None:
    """Checks the rule ids that the user gave.

    Raises:
        BadInput: there is no such rule.
    """
    known = {rule.id for rule in all_rules()}
    for option, given in (("--select", options.select), ("--ignore", options.ignore)):
        for rule_id in sorted(given - known):
            raise BadInput(option, what=f"no rule {rule_id!r}", todo="`dp2ddp rules` lists them")


def with_rules(options: Options, select: Sequence[str], ignore: Sequence[str]) -> Options:
    """`options` with rule ids as a user types them, in any case."""
    upper = [frozenset(rule_id.upper() for rule_id in given) for given in (select, ignore)]
    return replace(options, select=upper[0], ignore=upper[1])


def _comment(note: Note, source: Source) -> InsertBefore:
    """The note as a comment above the statement that it is about."""
    around = (source.span(node) for node in source.nodes if isinstance(node, ast.stmt) and not _is_elif(node, source))
    statement = max((span for span in around if span.contains(note.span)), default=note.span)
    return InsertBefore(note.rule, statement, note.what, [f"# TODO({note.rule}): {note.what}; {note.todo}"])


def _is_elif(node: ast.stmt, source: Source) -> bool:
    return isinstance(node, ast.If) and source.segment(node).startswith("elif")


def _refuse_misplaced(source: Source, edits: Sequence[Edit]) -> None:
    """Python 3.9 gives wrong columns for what stands in an f-string of several lines.

    Raises:
        BadInput: one of the edits may be there.
    """
    strings = [node for node in source.nodes if isinstance(node, ast.JoinedStr) and node.lineno != node.end_lineno]
    for span in (source.span(node) for node in strings if re.search("\"{3}|'{3}", source.segment(node))):
        for edit in edits:
            if span.start < edit.span.start and edit.span.start.line <= span.end.line:
                raise BadInput(
                    source.filename,
                    line=edit.span.start.line,
                    what="Python 3.9 does not tell where in an f-string of several lines an expression stands",
                    todo="run dp2ddp with Python 3.10 or later; the conversion runs with 3.9, too",
                )


def _rewrite(text: str, filename: str, edits: Sequence[Edit]) -> str:
    try:
        new_text = apply(text, edits)
    except NotRewritable as error:
        raise BadInput(
            filename, line=error.line, what=error.what, todo="change that line, or convert by hand"
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(new_text)
    except SyntaxError as error:
        # Better no file than a broken one.
        raise EditError(f"the conversion is no Python: line {error.lineno}: {error.msg}") from error
    return new_text
