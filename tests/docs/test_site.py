"""What the site's build (`dev.py docs`) doesn't look after: links of other pages, and that the reference has all."""

from __future__ import annotations

import re

import blocks
import pytest


def test_the_reference_has_all_that_the_runtime_offers() -> None:
    page = (blocks.ROOT / "docs/reference.md").read_text("utf-8")
    source = (blocks.ROOT / "runtime/dp2ddp_runtime/__init__.py").read_text("utf-8")
    listed = re.search(r"__all__ = \[(.*?)\]", source, re.DOTALL)
    assert listed
    names = re.findall(r'"(?!_)(\w+)"', listed[1])
    assert len(names) > 15
    assert [name for name in names if not re.search(rf":: (dp2ddp_runtime\.)?{name}$", page, re.MULTILINE)] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_the_pages_outside_of_the_site(name: str) -> None:
    """Sphinx looks after the others."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#([^)]*))?\)", (blocks.ROOT / name).read_text("utf-8"))
    assert links or name == "CHANGELOG.md"
    for path, heading in links:
        assert (blocks.ROOT / path).exists(), path
        text = (blocks.ROOT / path).read_text("utf-8") if path.endswith(".md") else ""
        known = {_anchor(title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
        assert not heading or heading in known, f"{path}#{heading}"


def _anchor(title: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
