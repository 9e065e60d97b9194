"""What the reports say: diffs, colors, examples, and the page of rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click
import pytest
from commands import command

from dp2ddp.command import terminal
from dp2ddp.convert import diffs
from dp2ddp.convert.job import DisplayPaths, Job, Request
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.convert.reporting import File, Report, lines_of
from dp2ddp.project.python_files import PythonFiles
from dp2ddp.rewrite.edits import Note, RemoveStatement
from dp2ddp.rules import Options
from dp2ddp.source.spans import Span

NO_NEWLINE = "\\ No newline at end of file\n"
SPAN = Span.of(3, 0, 3, 5)


Printed = Callable[..., list[str]]


def _report(files: Sequence[File]) -> Report:
    names = [each.name for each in files]
    return Report(Job(Request(names, Options()), DisplayPaths(Path()), PythonFiles(Path())), files, files)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Printed:
    """The lines of a conversion's summary."""

    def show(conversion: Conversion, *, output: str | None = "out.py", verbose: bool = False) -> list[str]:
        done = [File("train.py", output, replace(conversion, old_text=conversion.old_text or "x\ny\nz = 5\nw = 6\n"))]
        terminal.show_messages(lines_of(_report(done), verbose=verbose))
        return capsys.readouterr().err.splitlines()

    return show


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a\n", "a\n", ""),
        ("a\n", "b\n", "--- x.py\n+++ x.py\n@@ -1 +1 @@\n-a\n+b\n"),
        ("a", "b", f"--- x.py\n+++ x.py\n@@ -1 +1 @@\n-a\n{NO_NEWLINE}+b\n{NO_NEWLINE}"),
        ("a\r\nb\r\n", "a\r\n", "--- x.py\n+++ x.py\n@@ -1,2 +1 @@\n a\r\n-b\r\n"),
    ],
)
def test_diffs_keep_every_byte(old: str, new: str, expected: str) -> None:
    assert diffs.diff("x.py", old, new) == expected


def test_a_diff_is_colored_as_git_does() -> None:
    told = "--- a\n+++ a\n@@ -1 +1 @@\n-x\n+y\n z\n"
    text = diffs.colored(told)
    assert click.unstyle(text) == told
    assert text == (
        "\x1b[1m--- a\x1b[0m\n\x1b[1m+++ a\x1b[0m\n\x1b[36m@@ -1 +1 @@\x1b[0m\n"
        "\x1b[31m-x\x1b[0m\n\x1b[32m+y\x1b[0m\n z\n"
    )


def test_what_is_said_twice_for_a_line_is_said_once(printed: Printed) -> None:
    edit = RemoveStatement("DDP003", SPAN, "the optimizer is no module")
    other = RemoveStatement("DDP003", Span.of(4, 0, 4, 5), "the optimizer is no module")
    lines = printed(Conversion("x\n", edits=[edit, edit, other], changed=True), verbose=True)
    assert lines[:4] == [
        "train.py -> out.py: 3 changes",
        "    3  unwraps the optimizer",
        "         train.py:3  DDP003  `z = 5` goes: the optimizer is no module",
        "         train.py:4  DDP003  `w = 6` goes: the optimizer is no module",
    ]


def test_notes_that_say_the_same_are_one_line(printed: Printed) -> None:
    notes = [Note("DDP016", Span.of(line, 0, line, 5), "it is odd", "look") for line in (3, 9, 9)]
    assert printed(Conversion("x\n", notes=notes))[1:] == [
        "3 notes for a person to look at (`dp2ddp rules ID` says why):",
        "  train.py:3, 9  DDP016  it is odd; look",
    ]


def test_a_note_on_several_files_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    notes = [Note("DDP001", SPAN, "`--help` starts all of them", "leave it")]
    files = [File(name, None, Conversion("x\n", notes=notes)) for name in ("train.py", "test.py")]
    terminal.show_messages(lines_of(_report(files), verbose=False))
    assert capsys.readouterr().err.splitlines()[2:] == [
        "2 notes for a person to look at (`dp2ddp rules ID` says why):",
        "  train.py:3, test.py:3  DDP001  `--help` starts all of them; leave it",
    ]


def test_a_long_summary_is_cut_unless_it_is_verbose(printed: Printed) -> None:
    notes = [Note("DDP016", Span.of(line, 0, line, 5), f"it is odd, {line}", "look") for line in range(1, 21)]
    short = printed(Conversion("x\n", notes=notes))
    assert short[1] == "20 notes for a person to look at (`dp2ddp rules ID` says why):"
    assert len(short) == 2 + 7 + 1
    assert short[-1] == "  and 13 more, which --verbose shows"
    assert len(printed(Conversion("x\n", notes=notes), verbose=True)) == 2 + 20


def test_square_brackets_are_no_markup(printed: Printed) -> None:
    note = Note("DDP016", SPAN, "`ids[0]` and `x[/bold]` are not known", "look at `[red]`")
    assert "`ids[0]` and `x[/bold]` are not known; look at `[red]`" in printed(Conversion("x\n", notes=[note]))[-1]


def test_long_lines_are_not_wrapped(printed: Printed) -> None:
    edit = RemoveStatement("DDP003", SPAN, "long " * 60)
    assert "long " * 60 in "\n".join(printed(Conversion("x\n", edits=[edit], changed=True), verbose=True))


def test_one_script_s_summary_is_ten_lines_and_says_no_absolute_path_twice(tmp_path: Path) -> None:
    loaders = "".join(f"torch.utils.data.DataLoader([{n}])\n" for n in range(9))
    odd = "".join(f"def f{n}():\n    loss.data[0]\n" for n in range(30))
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n{loaders}net = torch.nn.DataParallel(net, device_ids=[0, 1, 2])\n{odd}")
    said = command("convert", str(script), "-o", str(tmp_path / "out.py")).stderr
    assert len(said.splitlines()) <= 10
    assert said.count(str(tmp_path)) == 2  # what is read, and what is to be run
    assert f"Run it: python {tmp_path / 'out.py'}   # 3 processes, one on each GPU of `device_ids`; to try it" in said


def test_changes_are_counted_as_they_are_in_the_output(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from torch.nn import DataParallel, Linear\nnet = DataParallel(Linear(4, 2))\n")
    done = command("convert", str(tmp_path / "train.py"))
    assert done.stdout.count("wrap_model") == 1
    assert "    1  wraps the model" in done.stderr
