"""What the reports say: diffs, colors, examples, and the page of rules."""

from __future__ import annotations

from collections.abc import Callable

import click
import pytest

from dp2ddp import rules_doc
from dp2ddp.convert import report
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.rewrite.edits import Note, RemoveStatement
from dp2ddp.rules import Example, Rule
from dp2ddp.source.spans import Span

NO_NEWLINE = "\\ No newline at end of file\n"
SPAN = Span.of(3, 0, 3, 5)


Printed = Callable[..., list[str]]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """The lines of a conversion's summary."""

    def show(conversion: Conversion, output: str | None = "out.py", vendored: bool = False) -> list[str]:
        report.show_lines(report.summary_lines(conversion, "train.py", output))
        if conversion.changed:
            report.show_lines(report.how_to_run("train.py", output, vendored))
        return capsys.readouterr().err.splitlines()

    return show


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a\n", "a\n", ""),
        ("a\n", "b\n", "--- x.py\n+++ x.py\n@@ -1 +1 @@\n-a\n+b\n"),
        ("a", "b", f"--- x.py\n+++ x.py\n@@ -1 +1 @@\n-a\n{NO_NEWLINE}+b\n{NO_NEWLINE}"),
        ("a\r\nb\r\n", "a\r\n", "--- x.py\n+++ x.py\n@@ -1,2 +1 @@\n a\r\n-b\r\n"),
        ("a\x0cb\n", "a\x0cc\n", "--- x.py\n+++ x.py\n@@ -1 +1 @@\n-a\x0cb\n+a\x0cc\n"),
    ],
)
def test_diffs_keep_every_byte(old: str, new: str, expected: str) -> None:
    assert report.diff("x.py", old, new) == expected


def test_a_diff_is_colored_by_its_signs() -> None:
    text = report.colored("--- a\n+++ a\n@@ -1 +1 @@\n-x\n+y\n z\n")
    assert click.unstyle(text) == "--- a\n+++ a\n@@ -1 +1 @@\n-x\n+y\n z\n"
    codes = [line.partition("m")[0].partition("[")[2] for line in text.split("\x1b[0m")]
    assert codes == ["1", "1", "36", "31", "32", "", ""]


def test_colors_are_for_terminals_and_not_with_no_color(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report.show_lines([report.style("x", bold=True)])
    assert capsys.readouterr().err == "x\n"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    report.show_lines([report.style("x", bold=True)])
    assert capsys.readouterr().err == "\x1b[1mx\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    report.show_lines([report.style("x", bold=True)])
    assert capsys.readouterr().err == "x\n"


def test_what_is_said_twice_for_a_line_is_said_once(printed: Printed) -> None:
    edit = RemoveStatement("DDP003", SPAN, "the optimizer is no module")
    other = RemoveStatement("DDP003", Span.of(4, 0, 4, 5), "the optimizer is no module")
    lines = printed(Conversion("x\n", edits=[edit, edit, other], changed=True))
    assert lines[:3] == [
        "train.py -> out.py: 3 changes by 1 rule",
        "     3  DDP003  the optimizer is no module",
        "     4  DDP003  the optimizer is no module",
    ]


def test_notes_are_shown_where_nothing_was_converted(printed: Printed) -> None:
    note = Note("DDP016", SPAN, "a submodule is wrapped", "wrap the whole model")
    assert printed(Conversion("x\n", notes=[note])) == [
        "train.py: not converted",
        "1 note, to be looked at by a person:",
        "  train.py:3  DDP016  a submodule is wrapped; wrap the whole model",
    ]


def test_square_brackets_are_no_markup(printed: Printed) -> None:
    note = Note("DDP016", SPAN, "`ids[0]` and `x[/bold]` are not known", "look at `[red]`")
    assert "`ids[0]` and `x[/bold]` are not known; look at `[red]`" in printed(Conversion("x\n", notes=[note]))[-1]


def test_long_lines_are_not_wrapped(printed: Printed) -> None:
    edit = RemoveStatement("DDP003", SPAN, "long " * 60)
    assert "long " * 60 in "\n".join(printed(Conversion("x\n", edits=[edit], changed=True)))


@pytest.mark.parametrize(
    ("example", "flags"),
    [
        (Example("", ""), ""),
        (Example("", "", sync_bn=True, clean_keys=True), "--sync-bn --clean-keys"),
        (Example("", "", clean_keys=True), "--clean-keys"),
    ],
)
def test_the_flags_of_an_example(example: Example, flags: str) -> None:
    assert rules_doc.flags_of(example) == flags


def test_the_page_shows_flags_and_companions(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shown(Rule):
        id = "DDP900"
        title = "Show"
        why = "To be\nshown."
        examples = (Example("x\n", "y\n", sync_bn=True, also=("DDP901",)), Example("z\n"))
        valid = (Example("v\n", allow_ddp=True),)
        edits = None  # type: ignore[assignment]

    monkeypatch.setattr(rules_doc, "all_rules", lambda: (Shown(),))
    page = rules_doc.page()
    assert "| [DDP900](#ddp900) | Show |" in page
    assert "**Show.** To be shown." in page
    assert "After (`--sync-bn`, together with DDP901):\n\n```python\ny\n```\n" in page
    assert "Only noted:\n\n```python\nz\n```\n\nLeft alone (`--allow-ddp`):\n\n```python\nv\n```\n" in page
    shown = [click.unstyle(line) for line in rules_doc.rule_lines(Shown())]
    assert shown[-3:] == ["", "left alone with --allow-ddp:", "    v"]
