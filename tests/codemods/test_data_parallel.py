"""dp2ddp as one of libcst's codemods, run by libcst's own tool in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[2] / "fixtures"
COMMAND = "data_parallel.ConvertCommand"
CONFIG = "modules:\n- dp2ddp.codemods\nrepo_root: .\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(FIXTURES / "mnist_project", tmp_path / "project")
    (tmp_path / "project/.libcst.codemod.yaml").write_text(CONFIG)
    (tmp_path / "project/pyproject.toml").touch()
    return tmp_path / "project"


def tool(folder: Path, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "libcst.tool", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, input=given, capture_output=True, check=False)


def test_it_is_listed(project: Path) -> None:
    assert f"{COMMAND} - Turns nn.DataParallel training scripts into".encode() in tool(project, "list").stdout


@pytest.mark.parametrize("jobs", ["1", "4"])
def test_a_project_becomes_what_convert_makes_of_it(project: Path, jobs: str) -> None:
    before = {path.relative_to(project): path.read_bytes() for path in project.rglob("*.py")}
    done = tool(project, "codemod", COMMAND, "--no-format", "-j", jobs, ".")
    assert done.returncode == 0, done.stderr.decode()
    assert b"Failed to codemod 0 files" in done.stderr
    after = {path.relative_to(project): path.read_bytes() for path in project.rglob("*.py")}
    expected = FIXTURES / "mnist_project_ddp"
    assert after == {path: (expected / path).read_bytes() for path in before}
    assert after != before


def test_standard_input_is_a_script_by_itself(tmp_path: Path) -> None:
    script = b"import torch.nn as nn\nopen('x', 'w')\nnet = nn.DataParallel(nn.Linear(4, 2))\n"
    names = ["-x", f"dp2ddp.codemods.{COMMAND}", "--no-format", "--ignore", "ddp011", "-"]
    done = tool(tmp_path, "codemod", *names, given=script)
    assert done.returncode == 0, done.stderr
    assert b"net = ddp.wrap_model(nn.Linear(4, 2))" in done.stdout
    assert b"\nopen('x', 'w')\n" in done.stdout
    wrong = tool(tmp_path, "codemod", *names, "--ignore", "DDP002", given=script)
    assert wrong.returncode == 2
    assert b"DDP002 can't be left out" in wrong.stderr


def test_what_needs_a_person_is_a_warning_and_what_is_refused_is_skipped(tmp_path: Path) -> None:
    wrap = "net = nn.DataParallel(nn.Linear(4, 2))\n"
    scripts = {
        "train.py": f"import torch.nn as nn\nimport wandb\n{wrap}print(wandb.config)\n",
        "own.py": f"import torch.distributed as dist\nimport torch.nn as nn\ndist.init_process_group('nccl')\n{wrap}",
        "plain.py": "print(1)\n",
    }
    for name, text in {**scripts, ".libcst.codemod.yaml": CONFIG, "setup.py": ""}.items():
        (tmp_path / name).write_text(text)
    done = tool(tmp_path, "codemod", COMMAND, "--no-format", "train.py", "own.py", "plain.py")
    said = done.stderr.decode()
    assert done.returncode == 0, said
    assert "WARNING: line 4: DDP011: `wandb.config` is read, and only rank 0 has started wandb" in said
    assert "own.py:3: sets up distributed training already" in said
    assert "Skipped 1 files" in said
    assert "ddp.wrap_model" in (tmp_path / "train.py").read_text()
    assert {name: (tmp_path / name).read_text() for name in ("own.py", "plain.py")} == {
        name: scripts[name] for name in ("own.py", "plain.py")
    }
