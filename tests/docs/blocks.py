"""The blocks of code in the pages, and what is said about them in a comment above."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
# The examples of rules.md and the shell's lines in CONTRIBUTING are tested where they come from.
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(set(ROOT.glob("docs/*.md")) - {ROOT / "docs/rules.md"}))


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: the page's path in the repository.
        line: where the block's text begins, from 1.
        language: what stands behind the fence.
        text: what is in it.
        comment: what the HTML comment right above it says, such as `not run: takes minutes`.
    """

    page: str
    line: int
    language: str
    text: str
    comment: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def all_blocks() -> tuple[Block, ...]:
    """Every fenced block of every page."""
    return tuple(block for page in PAGES for block in _blocks(page))


def _blocks(page: Path) -> Iterator[Block]:
    comment = ""
    for token in MarkdownIt().parse(page.read_text("utf-8")):
        if token.type == "fence":
            assert token.map is not None
            name = page.relative_to(ROOT).as_posix()
            yield Block(name, token.map[0] + 2, token.info.strip(), token.content, comment)
        said = re.fullmatch(r"<!--\s*(.*?)\s*-->\s*", token.content) if token.type == "html_block" else None
        comment = said[1] if said else ""


def before_and_after(diff: str) -> tuple[str, str]:
    """The two files of a diff that shows all of them."""
    sides = ["".join(f"{line[1:]}\n" for line in diff.splitlines() if line[:1] in kept) for kept in (" -", " +")]
    return sides[0], sides[1]
