"""The command: outputs, options, exit codes, and what it says. Rules have their own tests."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import command as run

import dp2ddp
from dp2ddp.convert.running import STARTS, TRY
from dp2ddp.rules import all_rules

SCRIPT = """\
import torch.nn as nn

net = nn.DataParallel(Net())  # wrap
"""


CONVERTED = """\
import torch.nn as nn
import dp2ddp_runtime as ddp

ddp.setup()

net = ddp.wrap_model(Net())  # wrap
"""
#: With something for a person to look at.
ODD = f"{SCRIPT}import threading\nthreading.Thread(target=net).start()\n"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script train.py in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = Path("train.py")
    path.write_text(SCRIPT)
    return path


def here() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def test_without_an_output_the_diff_is_shown_and_nothing_written(script: Path) -> None:
    result = run("convert", "train.py")
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "--- train.py\n+++ train.py\n@@ -1,3 +1,6 @@\n import torch.nn as nn\n+import dp2ddp_runtime as ddp\n \n"
        "-net = nn.DataParallel(Net())  # wrap\n+ddp.setup()\n+\n+net = ddp.wrap_model(Net())  # wrap\n"
    )
    assert script.read_text() == SCRIPT
    assert here() == ["train.py"]


def test_the_summary_says_what_why_and_how_to_run(script: Path) -> None:
    script.write_text(ODD)
    result = run("convert", "train.py", "-o", "my out.py")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "train.py -> my out.py: 2 changes",
        "    1  lets the processes start",
        "    1  wraps the model: one replica in each process",
        "1 note for a person to look at (`dp2ddp rules ID` says why):",
        "  train.py:5  DDP020  this thread may call a wrapped model, which takes all ranks, and threads come to it in "
        "another order on each; call it in the main thread, or wait for the thread (`join`) before another one calls a "
        "model",
        f"Run it: python 'my out.py'   # {STARTS}; {TRY}",
        "  dp2ddp_runtime must be there where it runs: convert with --vendor, or pip install ./runtime (of dp2ddp).",
    ]


def test_the_converted_script_is_written_once_only_with_force_again(script: Path) -> None:
    script.chmod(0o755)
    assert run("convert", "train.py", "-o", "out.py").exit_code == 0
    assert Path("out.py").read_text() == CONVERTED
    assert os.access("out.py", os.X_OK)
    Path("out.py").write_text("mine\n")
    again = run("convert", "train.py", "-o", "out.py")
    assert again.exit_code == 2
    assert again.stderr == "dp2ddp: out.py: exists already; use --force to overwrite it\n"
    assert Path("out.py").read_text() == "mine\n"
    assert run("convert", "train.py", "-o", "out.py", "--force").exit_code == 0
    assert Path("out.py").read_text() == CONVERTED


def test_in_place_and_again(script: Path) -> None:
    assert run("convert", "--in-place", "train.py").exit_code == 0
    assert script.read_text() == CONVERTED
    before = script.stat().st_mtime_ns
    again = run("convert", "--in-place", "./train.py")
    assert again.exit_code == 0
    assert again.stderr == "./train.py: converted already, nothing to do\n"
    assert script.stat().st_mtime_ns == before
    # The runtime can still be asked for.
    assert run("convert", "--in-place", "train.py", "--vendor").exit_code == 0
    assert here() == ["dp2ddp_runtime", "train.py"]


def test_the_diff_can_be_applied(script: Path) -> None:
    data = f"# coding: latin-1\r\nname = 'é'\r\n{SCRIPT}x = '\x0c'".encode("latin-1")
    script.write_bytes(data)
    Path("diff").write_bytes(run("convert", "train.py").stdout_bytes)
    subprocess.run(["patch", "--binary", "-s", "train.py", "diff"], check=True)
    assert run("convert", "-", "-o", "-", given=data).stdout_bytes == script.read_bytes() != data


def test_strict_fails_while_notes_are_open(script: Path) -> None:
    assert run("convert", "train.py", "--strict").exit_code == 0
    script.write_text(ODD)
    assert run("convert", "train.py").exit_code == 0
    assert run("convert", "train.py", "--strict", "-o", "out.py").exit_code == 1
    assert Path("out.py").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["none.py"], "dp2ddp: none.py: no such file\n"),
        (["train.py", "."], "dp2ddp: .: a directory among several inputs; give one directory, or scripts\n"),
        (["train.py", "-"], "dp2ddp: -: standard input among several inputs; give it alone\n"),
        (["train.py", "--entry", "a.py"], "dp2ddp: --entry: the input is no directory"),
        (["train.py", "bad.py", "-o", "x"], "dp2ddp: x: several files need a folder to go to"),
        (["train.py", "-o", "train.py"], "dp2ddp: train.py: the output is the input; use --in-place to convert"),
        (["train.py", "-o", "."], "dp2ddp: train.py: the output is the input; use --in-place to convert"),
        (["train.py", "-o", "bad.py/"], "dp2ddp: bad.py: not a folder\n"),
        (["train.py", "-o", "none/out.py"], "dp2ddp: none/out.py: no such folder"),
        (["train.py", "--ignore", "x"], "dp2ddp: --ignore: no rule 'x'; `dp2ddp rules` lists them\n"),
        (["train.py", "--ignore", "ddp0111"], "dp2ddp: --ignore: no rule 'ddp0111'; `dp2ddp rules` lists"),
        (["train.py", "--ignore", "ddp002"], "dp2ddp: --ignore: DDP002 can't be left out (Wrap the model"),
        (["bad.py", "-o", "out.py"], "dp2ddp: bad.py:1:5: syntax error"),
        (["old.py", "-o", "out.py"], "dp2ddp: old.py:1: Python 2 (the print statement)"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(script: Path, args: Sequence[str], message: str) -> None:
    Path("bad.py").write_text("x = )\n")
    Path("old.py").write_text("print 'x'\n")
    before = here()
    result = run("convert", *args)
    assert result.exit_code == 2
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert here() == before
    assert script.read_text() == SCRIPT


@pytest.mark.parametrize(
    "args",
    [
        ["convert"],
        ["convert", "train.py", "--in-place", "-o", "out.py"],
        ["convert", "train.py", "--vendor"],
        ["convert", "train.py", "--format", "json", "-o", "-"],
        ["unknown"],
    ],
)
def test_wrong_usage_ends_with_2(script: Path, args: Sequence[str]) -> None:
    result = run(*args, given="")
    assert result.exit_code == 2
    assert "Usage:" in result.stderr
    assert here() == ["train.py"]


def test_any_crash_asks_for_a_report_with_what_is_known(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(self: object, facts: object, decisions: object) -> None:
        raise LookupError("gone")

    monkeypatch.setattr("dp2ddp.rules.loaders.LoadersRule.edits", crash)
    for command in ("convert train.py -o out.py", "convert -q . -o ../crashed", "check ."):
        result = run(*command.split())
        assert result.exit_code == 3
        assert result.stdout == ""
        said = result.stderr.splitlines()
        assert said[0] == "dp2ddp: internal error: LookupError: gone"
        assert f"dp2ddp {dp2ddp.__version__}, Python {platform.python_version()}" in said[1]
        assert len(said) == 3
    assert here() == ["train.py"]
    assert "Traceback (most recent call last)" in run("convert", "-v", "train.py").stderr


@pytest.mark.parametrize("command", ["rules", "convert train.py", "convert - -o - < train.py", "check train.py"])
def test_a_reader_that_leaves_is_no_failure(script: Path, command: str) -> None:
    code = f"set -o pipefail; {sys.executable} -m dp2ddp {command} | true; echo ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(["bash", "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == ("1\n" if command.startswith("check") else "0\n")
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_rules_are_listed_and_shown() -> None:
    listed = run("rules")
    assert listed.exit_code == 0
    assert listed.stdout == "".join(f"{each.id}  {each.title}\n" for each in all_rules())
    for each in all_rules():
        shown = run("rules", each.id.lower())
        titles = re.findall(r"^(converted|only noted|left alone)\b.*:$", shown.stdout, re.MULTILINE)
        expected = ["converted" if example.diff else "only noted" for example in each.examples]
        assert titles == [*expected, *(["left alone"] * len(each.valid))]
        for line in (*each.examples[0].diff.splitlines(), *each.valid[-1].before.splitlines()):
            assert line in shown.stdout
    unknown = run("rules", "DDP999")
    assert unknown.exit_code == 2
    assert unknown.stderr == "dp2ddp: rules: no rule 'DDP999'; `dp2ddp rules` lists them\n"
