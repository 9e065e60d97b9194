"""On a real terminal: colors, and a line for what takes long, which leaves nothing behind."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from dp2ddp.command import progress

SCRIPT = "import torch.nn as nn\n\nnet = nn.DataParallel(nn.Linear(4, 2))\n"


#: What has a line.
SLOW = """\
import sys
from dp2ddp.command import progress
with progress.shown("starting", wanted=sys.argv[1] != "-q"):
    progress.doing("training")
print("done")
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


def test_what_takes_long_has_a_line_that_says_what_is_done(folder: Path) -> None:
    _, written = on_terminal(folder, "-c", SLOW, "")
    # It is wiped away, before anything else is said.
    line, _, rest = written.rpartition("\x1b[2K")
    assert "training" in line
    assert rest.endswith("done\r\n")
    assert "training" not in rest
    assert "training" not in on_terminal(folder, "-c", SLOW, "-q")[1]


def test_without_a_terminal_nothing_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with progress.shown("reading", wanted=True):
        progress.doing("converting")
    assert capfd.readouterr() == ("", "")
