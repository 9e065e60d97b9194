"""Which scripts of a folder are converted: those named or found, what they reach, and what is told of the others."""

from __future__ import annotations

from pathlib import Path

from commands import write
from projects import CONVERTED, FILES, GUARD, read, run

from dp2ddp.convert.running import STARTS, TRY, command


def test_a_script_of_a_package_is_started_as_a_module(project: Path) -> None:
    """By its path Python can't import what stands beside it by `from .`."""
    write(project, {"pack/__init__.py": "", "pack/main.py": "from .parts import go\ngo()\n"})
    write(project, {"pack/__main__.py": "from .parts import go\ndef train():\n    go()\n"})
    write(project, {"pack/parts.py": "import torch.nn as nn\ndef go():\n    nn.DataParallel(nn.Linear(4, 2))\n"})
    lines = run("project", "--entry", "pack/main.py", "-o", "out").stderr.splitlines()
    assert f"Run it: cd out && python -m pack.main   # {STARTS}; {TRY}" in lines
    assert "pack/__main__.py: 1 change\n" in run("project").stderr
    assert command("pack/__main__.py", packages=1) == "python -m pack"


def test_entries_can_be_named(project: Path) -> None:
    write(project, {"start.py": "import nets\nnets.wrap(1)\n"})
    assert "out/start.py" in run("project", "-o", "out", "--entry", "start.py").stderr
    assert run("project", "--entry", "project/start.py", "--entry", "train.py").exit_code == 0
    for wrong in ("none.py", "README.md", "../x.py"):
        refused = run("project", "--entry", wrong)
        assert refused.stderr == (
            f"dp2ddp: --entry: no Python file {wrong!r} in project; name it by its path in the project\n"
        )
        assert refused.exit_code == 2


def test_wraps_that_no_script_reaches_are_an_error(project: Path) -> None:
    for script in ("train.py", "tools/test.py"):
        (project / script).unlink()
    result = run("project", "-o", "out")
    assert result.exit_code == 2
    assert result.stderr == (
        "dp2ddp: project: found no script to start that reaches the DataParallel at nets.py:3; "
        "name it with --entry FILE\n"
    )
    assert not Path("out").exists()
    tests = "import unittest\nfrom nets import wrap\nclass TestNets(unittest.TestCase):\n    def test(self): wrap(1)\n"
    write(project, {"tests/test_nets.py": f"{tests}{GUARD.replace('wrap', 'unittest.main')}"})
    told = run("project").stderr
    assert "at nets.py:3, but for the test tests/test_nets.py; name it with --entry FILE" in told
    write(project, {"main.py": "import nets\nnets.wrap(\n"})
    assert "name it with --entry FILE; it may be one that is no Python: main.py:2" in run("project").stderr


def test_guessed_scripts_that_cant_be_converted_are_left_as_they_are(project: Path) -> None:
    left = {"dist.py": f"from nets import wrap\nimport accelerate\n{GUARD}", "old.py": "print 'DataParallel'\n"}
    write(project, left)
    result = run("project", "-o", "out")
    assert result.exit_code == 0, result.output
    assert "  project/dist.py:2: sets up distributed training already: imports Accelerate; nothing was" in result.stderr
    assert (
        "  project/dist.py: left as it is, but it imports project/nets.py, which changed; run it with the"
        in result.stderr
    )
    assert "  project/old.py:1: Python 2 (the print statement); bring it" in result.stderr
    assert read("out") == {**CONVERTED, **left}
    assert run("project", "--strict").exit_code == 1
    named = run("project", "-o", "named", "--entry", "dist.py")
    assert named.exit_code == 2
    assert "dist.py:2  DDP016  sets up distributed training already: imports Accelerate" in named.stderr


def test_if_no_script_can_be_converted_the_first_says_why(project: Path) -> None:
    write(project, {"nets.py": f"import accelerate\n{FILES['nets.py']}"})
    result = run("project", "-o", "out")
    assert result.exit_code == 2
    assert result.stderr.startswith("dp2ddp: project/nets.py:1: sets up distributed training already: imports")
    assert not Path("out").exists()
    write(project, {"nets.py": "print 'DataParallel'\n"})
    assert run("project").stderr.startswith("dp2ddp: project/nets.py:1: Python 2")
