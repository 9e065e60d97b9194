"""On a real terminal: colors, and a progress bar for what takes long, which leaves nothing behind."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from commands import python

from dp2ddp.cli import main
from dp2ddp.command import progress

SCRIPT = "import torch.nn as nn\n\nnet = nn.DataParallel(nn.Linear(4, 2))\n"
#: A command whose work takes a moment, and whose bar waits for `sys.argv[1]` seconds.
SLOW = """\
import sys, time
from dp2ddp.cli import main
from dp2ddp.command import progress
from dp2ddp.convert import plan
progress.PATIENCE = float(sys.argv.pop(1))
slow = plan.Facts
plan.Facts = lambda *args, **kwargs: (time.sleep(0.8), slow(*args, **kwargs))[1]
main(prog_name="dp2ddp")
"""


def on_terminal(folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit code of a Python process whose outputs are a terminal, and what it wrote there."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "COLUMNS": "100"}
    for name in ("NO_COLOR", "FORCE_COLOR"):
        environment.pop(name, None)
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            written += piece
    os.close(ours)
    return process.returncode, written.decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_a_diff_on_a_terminal_looks_like_git_s(folder: Path) -> None:
    code, written = on_terminal(folder, "-m", "dp2ddp", "convert", "train.py")
    assert code == 0
    assert "\x1b[1m--- train.py\x1b[0m" in written
    assert "\x1b[31m-net = nn.DataParallel(nn.Linear(4, 2))\x1b[0m" in written
    assert "\x1b[32m+net = ddp.wrap_model(nn.Linear(4, 2))\x1b[0m" in written
    assert "\x1b[1mtrain.py: 2 changes\x1b[0m" in written


@pytest.mark.parametrize("command", [["convert", ".", "-o", "../slow"], ["check", "."]])
def test_what_takes_long_has_a_bar_that_says_what_is_done(folder: Path, command: list[str]) -> None:
    code, written = on_terminal(folder, "-c", SLOW, "0.3", *command)
    assert code == (1 if command[0] == "check" else 0)
    assert "converting scripts (0 of 1)" in written
    # It is wiped away, before anything else is said.
    bar, _, rest = written.rpartition("\x1b[2K")
    assert "converting scripts" in bar
    assert "converting scripts" not in rest
    assert re.search("files changed|train.py:", rest)


@pytest.mark.parametrize("arguments", [["60", "check", "."], ["0.1", "check", "-q", "."]])
def test_what_is_quick_or_quiet_has_none(folder: Path, arguments: list[str]) -> None:
    assert "converting" not in on_terminal(folder, "-c", SLOW, *arguments)[1]


def test_without_a_terminal_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.threading, "Timer", lambda *args: pytest.fail("a bar for nobody"))
    with progress.shown("reading", wanted=True):
        progress.doing("converting", 3)
        progress.advance(1)


def test_the_shell_completes_rules(folder: Path) -> None:
    code, asked = 'from dp2ddp.cli import main; main(prog_name="dp2ddp")', {"_DP2DDP_COMPLETE": "bash_complete"}
    for words, known in (("dp2ddp convert --ignore ddp00", False), ("dp2ddp rules -q DDP00", True)):
        done = python("-c", code, here=folder, COMP_WORDS=words, COMP_CWORD="3", **asked)
        assert "plain,DDP005" in done.stdout, done.stderr
        assert ("plain,DDP002" in done.stdout) == known  # what the others need can't be ignored


def test_help_cuts_no_line_off_and_says_where_the_documentation_is() -> None:
    said = CliRunner().invoke(main, ["--help"]).output
    assert "..." not in said.partition("\n")[2]
    assert "docs/quickstart.md" in said
