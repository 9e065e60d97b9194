"""Odd input: it works, or there is one clear line, exit code 2, and nothing written. No traceback, no hang."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from commands import started

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.errors import BadInput
from dp2ddp.rules import Options

SCRIPT = """\
import torch
import torch.nn as nn
from datetime import datetime

net = nn.DataParallel(nn.Linear(4, 2))
"""


@pytest.fixture(autouse=True)
def _script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)


def refused(done: subprocess.CompletedProcess[str], says: str) -> None:
    """One line that says so, and exit code 2."""
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("dp2ddp: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_standard_input_has_no_name_in_a_folder(tmp_path: Path) -> None:
    refused(started("convert", "-", "-o", "out/", given=SCRIPT), "out/: a folder, and standard input has no name there")
    assert sorted(os.listdir(tmp_path)) == ["train.py"]


def test_closed_standard_streams() -> None:
    refused(started("convert", "-", shell="<&-"), "<stdin>: can't be read, as it is closed")
    refused(started("convert", "train.py", shell=">&-"), "standard output: can't be written, as it is closed")
    assert started("convert", "train.py", "-o", "out.py", shell=">&- 2>&- <&-").returncode == 0
    assert "wrap_model" in Path("out.py").read_text()


ODD = os.fsdecode(b"tr\xff\nain\x1b[2J.py")


def test_a_name_that_is_no_text() -> None:
    Path("project").mkdir()
    os.rename("train.py", f"project/{ODD}")
    done = started("convert", f"project/{ODD}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(r'--- "project/tr\377\012ain\033[2J.py"')
    assert "\x1b" not in done.stderr
    assert r"project/tr\udcff\nain\x1b[2J.py: " in done.stderr
    done = started("convert", "project", "-o", "out", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert "wrap_model" in Path("out", ODD).read_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("await x\n", "6:1: syntax error: 'await' outside"),
        ("from __future__ import annotations\n", "from __future__ imports must occur at the beginning"),
    ],
)
def test_what_parses_but_does_not_compile(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=r"^train.py:\d+:\d+: syntax error") as error:
        convert_source(SCRIPT + text, "train.py", Options())
    assert says in str(error.value)


DEEP = {
    "a long sum": "s = " + " + ".join("a" for _ in range(2500)),
    "elif": "if a == 0:\n    b = 0\n" + "".join(f"elif a == {i}:\n    b = {i}\n" for i in range(1, 250)),
    "assignments": "x0 = net\n" + "".join(f"x{i + 1} = x{i}\n" for i in range(3000)) + "torch.save(x3000, 'a')",
}


@pytest.mark.parametrize("kind", DEEP)
def test_deep_nesting_converts(kind: str) -> None:
    text = f"{SCRIPT}{DEEP[kind]}\ntorch.save(net.state_dict(), 'net.pt')\n"
    converted = convert_source(text, "train.py", Options()).new_text
    assert "ddp.wrap_model" in converted
    assert "ddp.save(net.state_dict(), 'net.pt')" in converted
    if kind != "assignments":
        assert DEEP[kind] in converted


def test_what_is_nested_too_deeply_for_us_is_told() -> None:
    text = SCRIPT + "s = datetime.now()" + ".b" * 1200 + "\n"
    with pytest.raises(BadInput, match=r"^train.py: nested too deeply for dp2ddp; break its longest expression"):
        convert_source(text, "train.py", Options())
