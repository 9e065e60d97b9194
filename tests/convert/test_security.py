"""The user's script is data: nothing of it is run, and nothing is written but where it was asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import started, write

WRAP = "import torch\nimport torch.nn as nn\n\nnet = nn.DataParallel(nn.Linear(4, 2))\n"
CANARY = "open({where!r}, 'w').close()"


def _project(root: Path, canary: str) -> None:
    """A project in which everything that can run does."""
    files = {
        "train.py": f"""\
{WRAP}
import base
from package import part
{canary}


@({canary})
def decorated(x: ({canary}) = {canary}) -> ({canary}):
    pass


class Made(metaclass=type("M", (type,), {{"x": {canary}}})):
    y: {canary}
    {canary}


value = f"{{{canary}}}"
torch.load(f"{{{canary}}}.pt", pickle_module={canary})
""",
        "base.py": canary,
        "package/__init__.py": canary,
        "package/part.py": f"{canary}\n{WRAP}",
        "conftest.py": canary,
        "setup.py": f"import setuptools\n{canary}\nsetuptools.setup(entry_points={{'console_scripts': ['a=b:c']}})\n",
        "sitecustomize.py": canary,
        "usercustomize.py": canary,
        "project.pth": f"import os; {canary}\n",
        "pyproject.toml": (
            "[project]\nname = 'x'\n[project.scripts]\ngo = 'train:decorated'\n[project.entry-points.pytest11]\n"
            "x = 'conftest'\n[build-system]\nrequires = []\nbuild-backend = 'setup'\nbackend-path = ['.']\n"
        ),
        "setup.cfg": "[options]\npackages = attr: base.x\n",
        # What the command itself imports, by the same names.
        **{f"{name}.py": canary for name in ("click", "libcst", "rich", "torch", "json", "dp2ddp_runtime")},
    }
    write(root, files)


#: As the console script starts it; `python -m` puts the current folder on the path, and is told not to.
WAYS = ["-m dp2ddp", "-c 'import sys; sys.path.remove(\"\"); from dp2ddp.cli import main; main()'"]


@pytest.mark.parametrize(
    ("args", "way"),
    [
        (["convert", ".", "-o", "../out"], WAYS[0]),
        (["convert", "train.py", "-o", "../out/"], WAYS[1]),
        (["check", "."], WAYS[0]),
    ],
)
def test_nothing_of_a_project_is_run(args: list[str], way: str, tmp_path: Path) -> None:
    where = tmp_path / "canary"
    project = tmp_path / "project"
    _project(project, CANARY.format(where=str(where)))
    done = started(*args, here=project, way=way)
    assert not where.exists(), done.stderr
    assert done.returncode in (0, 1), done.stderr
    if args[0] == "convert":
        assert "wrap_model" in (tmp_path / "out" / "train.py").read_text()
    assert not list(project.rglob("__pycache__"))


def test_the_canary_sings(tmp_path: Path) -> None:
    where = tmp_path / "canary"
    _project(tmp_path / "project", CANARY.format(where=str(where)))
    subprocess.run([sys.executable, "base.py"], cwd=tmp_path / "project", check=True)
    assert where.exists()


# -- what is written stays where it was asked for ----------------------------------------------------------------------


def test_links_out_of_a_project_are_not_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    project = tmp_path / "project"
    outside.mkdir()
    project.mkdir()
    (outside / "kept.py").write_text(WRAP)
    (project / "train.py").write_text(f"{WRAP}import linked\nimport folder.kept\n")
    (project / "linked.py").symlink_to(outside / "kept.py")
    (project / "folder").symlink_to(outside)
    (project / "absolute").symlink_to("/")
    done = started("convert", "project", "-o", "out", here=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (outside / "kept.py").read_text() == WRAP
    assert sorted(os.listdir(outside)) == ["kept.py"]
    assert "wrap_model" in (tmp_path / "out" / "train.py").read_text()
    done = started("convert", "project", "-o", "out", "--force", here=tmp_path)  # into what holds these links by now
    assert done.returncode == 0, done.stderr
    assert (outside / "kept.py").read_text() == WRAP


def test_a_link_in_the_output_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(WRAP)
    (tmp_path / "out").mkdir()
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "out" / "train.py").symlink_to(tmp_path / "mine.txt")
    done = started("convert", "project", "-o", "out", "--force", here=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert "wrap_model" in (tmp_path / "out" / "train.py").read_text()
