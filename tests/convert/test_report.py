"""What the reports say: diffs, colors, examples, and the page of rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from commands import command

from dp2ddp.command import terminal
from dp2ddp.convert.job import DisplayPaths, Job, Request
from dp2ddp.convert.pipeline import Conversion
from dp2ddp.convert.reporting import File, Report, lines_of
from dp2ddp.project.python_files import PythonFiles
from dp2ddp.rewrite.edits import Note
from dp2ddp.rules import Options
from dp2ddp.source.spans import Span

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


def test_notes_that_say_the_same_are_one_line(printed: Printed) -> None:
    notes = [Note("DDP016", Span.of(line, 0, line, 5), "it is odd", "look") for line in (3, 9, 9)]
    assert printed(Conversion("x\n", notes=notes))[1:] == [
        "3 notes for a person to look at (`dp2ddp rules ID` says why):",
        "  train.py:3, 9  DDP016  it is odd; look",
    ]


def test_a_long_summary_is_cut_unless_it_is_verbose(printed: Printed) -> None:
    notes = [Note("DDP016", Span.of(line, 0, line, 5), f"it is odd, {line}", "look") for line in range(1, 21)]
    short = printed(Conversion("x\n", notes=notes))
    assert short[1] == "20 notes for a person to look at (`dp2ddp rules ID` says why):"
    assert len(short) == 2 + 7 + 1
    assert short[-1] == "  and 13 more, which --verbose shows"
    assert len(printed(Conversion("x\n", notes=notes), verbose=True)) == 2 + 20


def test_one_script_s_summary_is_ten_lines_and_says_no_absolute_path_twice(tmp_path: Path) -> None:
    loaders = "".join(f"torch.utils.data.DataLoader([{n}])\n" for n in range(9))
    odd = "".join(f"def f{n}():\n    loss.data[0]\n" for n in range(30))
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n{loaders}net = torch.nn.DataParallel(net, device_ids=[0, 1, 2])\n{odd}")
    said = command("convert", str(script), "-o", str(tmp_path / "out.py")).stderr
    assert len(said.splitlines()) <= 10
    assert said.count(str(tmp_path)) == 2  # what is read, and what is to be run
    assert f"Run it: python {tmp_path / 'out.py'}   # 3 processes, one on each GPU of `device_ids`; to try it" in said
