"""What every page has: the theme, copy buttons, boxes that stay ticked; nothing gets out of its text."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

import pytest
from browser import Browser
from markupsafe import Markup

from dp2ddp import page
from dp2ddp.page import rendering

HOSTILE = "</script><img src=x onerror=alert(1)>\"'&\x1b[31mred\u202egnp.exe\x00\udc80"
TEMPLATE = """\
{% extends "base.html.j2" %}
{% from "macros.html.j2" import command %}
{% block title %}{{ name }}{% endblock %}
{% block kind %}try{% endblock %}
{% block verdict %}<h1 title="{{ name }}">{{ name }}</h1>{% endblock %}
{% block main %}
<section aria-label="one">
{{ command(name, "it") }}
<p><label><input type="checkbox" data-remember="{{ name }}"> seen</label></p>
<p><a href="#deep">to what is folded</a></p>
<details id="outer"><summary>more</summary><details><summary>and more</summary><p id="deep">deep</p></details></details>
</section>
{% endblock %}
"""


@pytest.fixture
def sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of a package that gives it nothing but a template and a hostile name."""
    package = tmp_path / "house_of_pages"
    (package / "templates").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "templates/try.html.j2").write_text(TEMPLATE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "house_of_pages", raising=False)
    path = tmp_path / "try.html"
    page.write(str(path), rendering.render("house_of_pages", "try.html.j2", {"name": HOSTILE}))
    return path


def test_it_opens_in_silence(browser: Browser, sheet: Path) -> None:
    browser.opens_in_silence(sheet)


def test_the_policy_lets_nothing_in(browser: Browser, sheet: Path) -> None:
    browser.open(sheet)
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'window.got = 1'; document.body.append(s);"
        "const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i);"
    )
    assert browser.run("return window.got") is None
    assert sum("Content Security Policy" in each for each in browser.complaints()) == 2


def test_the_switch_wins_over_the_preference_and_stays(browser: Browser, sheet: Path) -> None:
    browser.open(sheet, dark=False)
    assert browser.one("#theme").get_attribute("aria-checked") == "false"
    browser.one("#theme").click()
    browser.driver.refresh()
    assert browser.one("#theme").get_attribute("aria-checked") == "true"
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    browser.one("#theme").click()
    browser.prefer(dark=True)
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


#: What is written on what.
_ON = {
    "ground": "text muted link good bad warn",
    "raised": "text muted link good bad warn",
    "info-ground": "text link",
    "good-ground": "text muted good",
    "bad-ground": "text muted bad",
    "warn-ground": "text link warn",
    "good-mark": "text",
    "bad-mark": "text",
}


@pytest.mark.parametrize("dark", [False, True])
def test_colours_can_be_told_apart(browser: Browser, sheet: Path, dark: bool) -> None:
    browser.open(sheet, dark=dark)
    pairs = [(ground, name) for ground, names in _ON.items() for name in names.split()]
    colours = {each: _colour(browser, each) for each in {name for pair in pairs for name in pair}}
    weak = {pair: round(_contrast(*map(colours.__getitem__, pair)), 2) for pair in pairs}
    assert {pair: ratio for pair, ratio in weak.items() if ratio < 4.5} == {}


def _colour(browser: Browser, name: str) -> list[int]:
    script = "document.body.style.color = `var(--${arguments[0]})`; return getComputedStyle(document.body).color"
    return [int(part) for part in re.findall(r"\d+", browser.run(script, name))]


def _contrast(one: list[int], other: list[int]) -> float:
    """As WCAG 2.2 defines it."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: list[int]) -> float:
    parts = (part / 255 for part in colour)
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_copying_gives_the_very_characters(browser: Browser, sheet: Path) -> None:
    browser.open(sheet)
    browser.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.one("button.copy").click()
    # The driver can't hand over half a pair.
    assert browser.run("return window.copied.replace('\\udc80', '?')") == HOSTILE.replace("\udc80", "?")
    assert browser.one("button.copy").text == "Copied"


def test_a_link_opens_what_is_folded(browser: Browser, sheet: Path) -> None:
    browser.open(sheet)
    assert browser.shown("#deep") == []
    browser.one('a[href="#deep"]').click()
    assert browser.shown("#deep") == ["deep"]
    browser.run("document.getElementById('outer').open = false")
    browser.one('a[href="#deep"]').click()
    assert browser.shown("#deep") == ["deep"]


def test_without_scripts_there_are_no_dead_buttons(browser: Browser, sheet: Path) -> None:
    browser.open(sheet, script=False)
    try:
        assert not any(each.is_displayed() for each in browser.all("button"))
    finally:
        browser.cdp("Emulation.setScriptExecutionDisabled", value=False)


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


def test_code_is_markup_once() -> None:
    assert rendering.code("a < b") == Markup("a &lt; b")
    assert rendering.code("\x00") == Markup(
        '<span class="odd" data-char="0" title="a character that does not show">\\x00</span>'
    )


def test_sentences_have_their_code_marked() -> None:
    assert rendering.prose("use `a < b`\n  and \x07") == Markup("use <code>a &lt; b</code> and \\x07")
