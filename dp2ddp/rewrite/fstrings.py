"""Edits inside f-strings: `{x=}` goes on showing what the script wrote."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst


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
