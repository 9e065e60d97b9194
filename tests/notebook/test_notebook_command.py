"""`dp2ddp convert` and `check` with notebooks: outputs, names in messages, bad input."""

from __future__ import annotations

import os
from pathlib import Path

import fixture_data
import making
import pytest
from commands import command as run
from making import WRAP

LOADED = WRAP.replace("\n", "\nimport torch.utils.data as data\nloader = data.DataLoader([1])\n", 1)


FIXTURE = fixture_data.FIXTURES / "notebook"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def notebook() -> Path:
    """train.ipynb in the current folder."""
    return making.write(Path("train.ipynb"), "#md # Title", f"!pip install timm\n{WRAP}")


def test_the_fixture_s_conversions_are_as_committed(tmp_path: Path) -> None:
    """After a change that is meant: `dp2ddp convert digits.ipynb -o digits_ddp.py --force`, and read the diff."""
    source = tmp_path / "digits.ipynb"
    source.write_bytes((FIXTURE / "digits.ipynb").read_bytes())
    assert run("convert", "digits.ipynb", "-o", "digits_ddp.py").exit_code == 0
    assert Path("digits_ddp.py").read_text() == (FIXTURE / "digits_ddp.py").read_text()


def test_a_notebook_becomes_a_script(notebook: Path) -> None:
    before = notebook.read_bytes()
    done = run("convert", "train.ipynb", "-o", "train_ddp.py")
    assert done.exit_code == 0, done.output
    assert Path("train_ddp.py").read_text().endswith("net = ddp.wrap_model(nn.Linear(4, 2))\n")
    lines = done.stderr.splitlines()
    assert lines[0] == "train.ipynb -> train_ddp.py: 2 changes"
    assert lines[4].startswith("  train.ipynb:cell 2:1  notebook  `!pip install timm` is run by the notebook, not by")
    assert notebook.read_bytes() == before
    verbose = run("convert", "train.ipynb", "-o", "new.py", "--strict", "-v")
    assert verbose.exit_code == 1
    assert "\n         train.ipynb:cell 2:3  DDP002  " in verbose.stderr
    assert "+net = ddp.wrap_model(nn.Linear(4, 2))\n" in run("convert", "train.ipynb").stdout


def test_a_folder_gets_scripts(notebook: Path) -> None:
    assert run("convert", "train.ipynb", "-o", "out/").exit_code == 0
    assert os.listdir("out") == ["train.py"]
    Path("train.py").write_text(f"{WRAP}\n")
    both = run("convert", "train.ipynb", "train.py", "-o", "both/")
    assert (both.exit_code, both.stderr) == (
        2,
        "dp2ddp: both/train.py: a notebook and a script would both go there; convert them one by one\n",
    )
    assert not Path("both").exists()


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["train.ipynb", "--in-place"], "train.ipynb"),
        (["train.ipynb", "-o", "new.ipynb"], "new.ipynb"),
        (["train.py", "-o", "new.ipynb"], "new.ipynb"),
    ],
)
def test_no_notebook_is_written(notebook: Path, arguments: list[str], name: str) -> None:
    Path("train.py").write_text(f"{WRAP}\n")
    before = notebook.read_bytes()
    done = run("convert", *arguments)
    said = f"dp2ddp: {name}: a notebook becomes a script; name that: -o train_ddp.py; a cell can start it\n"
    assert (done.exit_code, done.stderr) == (2, said)
    assert notebook.read_bytes() == before
    assert not Path("new.ipynb").exists()


def test_what_a_notebook_imports_is_followed(notebook: Path) -> None:
    making.write(notebook, "from model import net\nimport torch.nn as nn", "x = nn.DataParallel(net)")
    Path("model.py").write_text("import torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n")
    done = run("convert", "train.ipynb", "-o", "out/")
    assert done.exit_code == 0, done.output
    assert sorted(os.listdir("out")) == ["model.py", "train.py"]
    assert "ddp.wrap_model" in Path("out/model.py").read_text()


def test_errors_about_the_script_name_the_cell(notebook: Path) -> None:
    making.write(notebook, WRAP, "await f()")
    done = run("convert", "train.ipynb", "-o", "out.py")
    assert done.exit_code == 2
    assert done.stderr.startswith("dp2ddp: train.ipynb:cell 2:1:1: syntax error: 'await' outside function")
    assert not Path("out.py").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x = 1", "no valid notebook: "),
        (b"{" * 100_000, "no valid notebook: "),
        (b"\xff\xfe", "no valid notebook: 'utf-8' codec"),
        (b'{"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": []}', "a notebook without code"),
        (b'{"nbformat": 99, "nbformat_minor": 0, "metadata": {}, "cells": []}', "no valid notebook: "),
        (b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [1]}', "no valid notebook: "),
        (b'{"nbformat": 4, "nbformat_minor": 5, "metadata": 1, "cells": []}', "no valid notebook: "),
        (b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}', "a notebook without code"),
    ],
)
def test_bad_notebooks_are_one_line(data: bytes, message: str) -> None:
    Path("train.ipynb").write_bytes(data)
    for args in (
        ["convert", "train.ipynb", "-o", "out.py"],
        ["check", "train.ipynb"],
    ):
        done = run(*args)
        assert done.exit_code == 2, done.exception
        assert done.stderr.startswith(f"dp2ddp: train.ipynb: {message}")
        assert done.stderr.count("\n") == 1
    assert os.listdir() == ["train.ipynb"]
    assert Path("train.ipynb").read_bytes() == data
