"""What a command imports: never torch, and what pages, notebooks and projects need only where there are any."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import python

SCRIPT = "import torch.nn as nn\n\nnet = nn.DataParallel(nn.Linear(4, 2))\n"
NEVER = "torch dp2ddp_runtime"
HEAVY = "rich libcst tempfile dp2ddp.rules dp2ddp.convert"
PAGES = "jinja2 markupsafe"
PROJECTS = "rich dp2ddp.project.entries dp2ddp.convert.formats"


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        ("--version", HEAVY),
        ("--help", HEAVY),
        ("rules", PAGES),
        ("convert train.py -o out.py", f"{PAGES} {PROJECTS} nbformat"),
        ("convert train.py -o out/ --vendor", PAGES),
        ("convert .", f"{PAGES} nbformat"),
    ],
)
def test_a_command_imports_what_it_needs_only(tmp_path: Path, arguments: str, unneeded: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    code = (
        f"import sys\nfrom dp2ddp.cli import main\nmain({arguments.split()!r}, standalone_mode=False)\n"
        f"sys.exit(', '.join({{*{unneeded.split()!r}, *{NEVER.split()!r}}} & set(sys.modules)) or 0)\n"
    )
    done = python("-c", code, here=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all("ddp.wrap_model" in path.read_text() for path in tmp_path.glob("out*/train.py"))
