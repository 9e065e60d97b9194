"""The page of messages and the code say the same."""

from __future__ import annotations

import re

import messages

_PAGE = (messages.ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
_ON_PAGE = re.findall(r"^### `(.*?)`(?: and .*)?$", _PAGE, re.MULTILINE)
#: What the runtime catches itself, what is Python's or torch's own, and what is filled in with texts of the page.
_LEFT_OUT = {
    "another machine",
    "module … has no attribute …",
    "Parent directory … does not exist.",
    "dp2ddp: ……\n….\n",
}


def _is(shown: str, text: str) -> bool:
    """Whether a message on the page is a text of the code, or a part of it."""
    pieces = [re.escape(piece) for piece in shown.split(messages.FILLED_IN)]
    return re.search(".*".join(pieces), text.replace("`", ""), re.DOTALL) is not None


def test_every_message_on_the_page_is_in_the_code() -> None:
    said = [*messages.texts(messages.RUNTIME), *messages.texts(messages.ROOT / "dp2ddp")]
    assert len(_ON_PAGE) > 40
    assert len(set(_ON_PAGE)) == len(_ON_PAGE)
    assert [shown for shown in _ON_PAGE if not any(_is(shown, text) for text in said)] == []


def test_every_error_and_warning_of_the_runtime_is_on_the_page() -> None:
    said = dict.fromkeys(text for _, text in messages.raised(messages.RUNTIME))
    assert len(said) > 25
    assert {text for text in said if not any(_is(shown, text) for shown in _ON_PAGE)} == _LEFT_OUT
