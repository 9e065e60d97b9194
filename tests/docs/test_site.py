"""The site: every link between pages leads somewhere, every page is in the menu, and nothing comes from the network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import blocks
import pytest
import snowballstemmer

#: What a browser fetches by itself.
_FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built; a warning, such as of a link that leads nowhere, is an error."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(target / "doctrees")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [*command, "docs", str(target / "html")],
        cwd=blocks.ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return target / "html"


class _Fetched(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name == _FETCHED.get(tag)]


def test_every_page_is_there_and_needs_no_network(site: Path) -> None:
    pages = [site / f"{page.stem}.html" for page in blocks.ROOT.glob("docs/*.md")]
    assert len(pages) > 12
    for page in pages:
        parser = _Fetched()
        parser.feed(page.read_text("utf-8"))
        assert len(parser.found) > 5
        assert [address for address in parser.found if re.match(r"(https?:)?//", address)] == [], page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text("utf-8")), style.name


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("idiomatic", "troubleshooting"),
        ("HuggingFace", "troubleshooting"),
        ("Trainer", "troubleshooting"),
        ("NCCL timeout", "troubleshooting"),
        ("SLURM", "launching"),
        ("install", "quickstart"),
    ],
)
def test_searching_finds_what_people_look_for(site: Path, words: str, page: str) -> None:
    """By the index that the site's search reads: stems of words, each with the numbers of its pages."""
    text = (site / "searchindex.js").read_text("utf-8")
    index = json.loads(text[text.index("{") : text.rindex("}") + 1])
    for word in words.lower().split():
        stem = snowballstemmer.stemmer("english").stemWord(word)
        found = [index[kind].get(stem, []) for kind in ("terms", "titleterms")]
        numbers = {number for each in found for number in (each if isinstance(each, list) else [each])}
        assert index["docnames"].index(page) in numbers, stem


def test_the_reference_has_all_that_the_runtime_offers(site: Path) -> None:
    text = (site / "reference.html").read_text("utf-8")
    source = (blocks.ROOT / "runtime/dp2ddp_runtime/__init__.py").read_text("utf-8")
    listed = re.search(r"__all__ = \[(.*?)\]", source, re.DOTALL)
    assert listed
    names = re.findall(r'"(?!_)(\w+)"', listed[1])
    assert len(names) > 15
    assert [name for name in names if not re.search(rf'id="dp2ddp_runtime\.(\w+\.)?{name}"', text)] == []


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
