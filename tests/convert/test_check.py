"""`dp2ddp check`: what would be converted, in the forms that people and machines read; nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from commands import command

from dp2ddp.convert.findings import NOTE, Found
from dp2ddp.convert.formats import as_github

SCRIPT = """\
import torch
import torch.nn as nn
net = nn.DataParallel(nn.Linear(4, 2))
torch.save(net, "net.pt")
loader = torch.utils.data.DataLoader(torch.rand(8, 4))
"""
OWN_DDP = """\
import torch.distributed as dist
import torch.nn as nn
dist.init_process_group("nccl")
net = nn.DataParallel(nn.Linear(4, 2))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "plain.py").write_text("print(1)\n")
    return tmp_path


def run(*arguments: str) -> Result:
    return command("check", *arguments)


def findings(*arguments: str) -> Any:
    told = json.loads(run(*arguments, "--format", "json").stdout)
    assert told["version"] == 1
    return told["findings"]


def test_each_line_is_named_with_its_rule_and_nothing_is_written(folder: Path) -> None:
    done = run("train.py", "--output-format", "concise")
    assert done.exit_code == 1
    assert [line.split(": ")[0] for line in done.stdout.splitlines()] == [
        "train.py:2:1",
        "train.py:3:7",
        "train.py:4:1",
        "train.py:5:10",
    ]
    assert " DDP002 `nn.DataParallel` becomes `ddp.wrap_model`: " in done.stdout
    assert done.stderr == "4 to change in 1 file; `dp2ddp convert` makes the changes\n"
    assert sorted(path.name for path in folder.iterdir()) == ["plain.py", "train.py"]
    assert (folder / "train.py").read_text() == SCRIPT


@pytest.mark.usefixtures("folder")
def test_the_full_form_shows_the_source_and_what_becomes_of_it() -> None:
    done = run("train.py")
    assert run("train.py", "--format", "text").stdout == done.stdout
    assert done.stdout.split("\n\n")[2].splitlines() == [
        "DDP008 `torch.save` becomes `ddp.save`: rank 0 alone writes it, atomically",
        " --> train.py:4:1",
        "  |",
        "3 | net = nn.DataParallel(nn.Linear(4, 2))",
        '4 | torch.save(net, "net.pt")',
        "  | ^^^^^^^^^^",
        "5 | loader = torch.utils.data.DataLoader(torch.rand(8, 4))",
        "  |",
        "help: `dp2ddp convert` makes of it",
        '  + ddp.save(net, "net.pt")',
    ]


@pytest.mark.usefixtures("folder")
def test_what_needs_no_conversion_is_fine() -> None:
    done = run("plain.py")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "nothing to convert\n")
    assert findings("plain.py") == []
    assert run("plain.py", "--format", "github").stdout == ""


@pytest.mark.parametrize(
    "text", [OWN_DDP.replace("nn.DataParallel(", "nn.parallel.DistributedDataParallel("), "x = )\n"]
)
def test_a_script_that_has_nothing_to_do_with_data_parallel_needs_nothing(folder: Path, text: str) -> None:
    (folder / "other.py").write_text(text)
    assert run("other.py").exit_code == 0
    assert {each["file"] for each in findings("other.py", "train.py")} == {"train.py"}


def test_a_script_that_wraps_and_is_no_python_is_refused(folder: Path) -> None:
    (folder / "old.py").write_text("print 'x'\nnet = nn.DataParallel(net)\n")
    (refused,) = findings("old.py")
    assert (refused["kind"], refused["line"]) == ("refused", 1)


def test_annotations_escape_what_scripts_contain() -> None:
    found = Found("a:b,c.py", None, 3, 1, "DDP011", NOTE, "50% of\n`x`: y, z")
    assert as_github([found]) == ("::warning file=a%3Ab%2Cc.py,line=3,col=1,title=dp2ddp DDP011::50%25 of%0A`x`: y, z")
