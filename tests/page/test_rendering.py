"""What a page shows of what scripts say: nothing gets out of its text."""

from __future__ import annotations

import html

import pytest
from markupsafe import Markup

from dp2ddp.page import rendering


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[0m\x9b\x7f", "\\x1b[0m\\x9b\\x7f"),
        ("\u202eabc\u2066\u200b", "\\u202eabc\\u2066\\u200b"),
        ("\U000e0041", "\\U000e0041"),
        ("שלום, é, 漢", "שלום, é, 漢"),
    ],
)
def test_what_does_not_show_is_spelled_out(text: str, shown: str) -> None:
    assert rendering.visible(text) == shown
    assert html.unescape(rendering.code(text).striptags()) == " ".join(shown.split())


def test_sentences_have_their_code_marked() -> None:
    assert rendering.prose("use `a < b`\n  and \x07") == Markup("use <code>a &lt; b</code> and \\x07")
