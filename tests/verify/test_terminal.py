"""The terminal that stands in for standard input."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dp2ddp.verify.run import terminal

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")


def test_it_has_a_size_and_nothing_to_read() -> None:
    opened = terminal.open_silent(lines=30, columns=100)
    assert opened is not None
    keeper, fd = opened
    try:
        assert os.isatty(fd)
        assert os.get_terminal_size(fd) == os.terminal_size((100, 30))
        assert os.read(fd, 1) == b""
        code = "import os, sys\nprint(os.get_terminal_size(0).columns, sys.stdin.isatty())\ninput()"
        child = subprocess.run([sys.executable, "-c", code], stdin=fd, capture_output=True, text=True, timeout=30)
        assert child.stdout == "100 True\n"
        assert "EOFError" in child.stderr
    finally:
        os.close(fd)
        os.close(keeper)


def test_without_terminals_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> tuple[int, int]:
        raise OSError("out of pty devices")

    monkeypatch.setattr(os, "openpty", refuse)
    assert terminal.open_silent(lines=30, columns=100) is None
