"""Edits inside f-strings. Before Python 3.12 an expression there can't hold the quotes around it, so what a template
brings takes others; and `{x=}` goes on showing what the script wrote."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Sequence

import libcst as cst

from dp2ddp.errors import NotRewritable

_QUOTES = ('"', "'")


def requoted(template: str, above: Sequence[cst.CSTNode], line: int) -> str:
    """`template` with its strings in quotes that may stand where it is going to.

    Args:
        above: the nodes around that place, the f-strings among them.
        line: of the script, for the message.

    Raises:
        NotRewritable: f-strings inside each other leave no quotes.
    """
    around = [node.end for node in above if isinstance(node, cst.FormattedString)]
    if not around or not any(quote in template for quote in _QUOTES):
        return template
    free = [quote for quote in _QUOTES if quote not in around]
    if not free:
        raise NotRewritable(
            "an f-string inside another one: what goes into it needs quotes, and both kinds are taken", line
        )
    best = min(free, key=lambda quote: 3 * quote in around)
    tokens = [
        token._replace(string=best + ast.literal_eval(token.string) + best) if token.type == tokenize.STRING else token
        for token in tokenize.generate_tokens(io.StringIO(template).readline)
    ]
    return _joined(template, tokens)


def _joined(template: str, tokens: Sequence[tokenize.TokenInfo]) -> str:
    """The line `template` with each token in its place."""
    made, end = "", 0
    for token in tokens:
        made += template[end : token.start[1]] + token.string
        end = max(end, token.end[1])
    return made


def keep_labels(original: cst.FormattedString, updated: cst.FormattedString) -> cst.FormattedString:
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
