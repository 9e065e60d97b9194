"""`dp2ddp convert` and `check` with notebooks: outputs, names in messages, bad input."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import fixture_data
import making
import nbformat
import pytest
from commands import command as run
from making import WRAP

LOADED = WRAP.replace("\n", "\nimport torch.utils.data as data\nloader = data.DataLoader([1])\n", 1)
FIXTURE = fixture_data.FIXTURES / "notebook"
# Before click 8.2 the two outputs are kept apart only on demand.


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


def test_the_summary_as_json_has_cells(notebook: Path) -> None:
    data = json.loads(run("convert", "train.ipynb", "-o", "train_ddp.py", "--format", "json").stdout)
    assert [(each["rule"], each["cell"], each["line"]) for each in data["findings"]] == [
        ("notebook", 2, 1),
        ("DDP001", 2, 2),
        ("DDP002", 2, 3),
    ]


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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("await f()", "cell 2:1:1: syntax error: 'await' outside function"),
        ("async for x in y: pass", "cell 2:1:1: syntax error: 'async for' outside async function"),
    ],
)
def test_errors_about_the_script_name_the_cell(notebook: Path, line: str, message: str) -> None:
    making.write(notebook, WRAP, line)
    done = run("convert", "train.ipynb", "-o", "out.py")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"dp2ddp: train.ipynb:{message}")
    assert not Path("out.py").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"x = 1", "no valid notebook: "),
        (b"{" * 100_000, "no valid notebook: "),
        (b"\xff\xfe", "no valid notebook: 'utf-8' codec"),
        (b"[]", "no valid notebook: "),
        (b'{"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": []}', "a notebook without code"),
        (b'{"nbformat": 99, "nbformat_minor": 0, "metadata": {}, "cells": []}', "no valid notebook: "),
        (b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}}', "no valid notebook: "),
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


@pytest.mark.parametrize(
    "metadata", [{"language_info": {"name": "R"}}, {"kernelspec": {"name": "ir", "display_name": "R", "language": "R"}}]
)
def test_another_language_is_refused(metadata: dict[str, object]) -> None:
    making.write(Path("train.ipynb"), "x <- 1", **metadata)
    done = run("convert", "train.ipynb", "-o", "out.py")
    assert (done.exit_code, done.stderr) == (2, "dp2ddp: train.ipynb: a notebook in r, not in Python\n")


def test_a_missing_notebook_and_one_on_standard_input_are_told(notebook: Path) -> None:
    assert run("convert", "none.ipynb", "-o", "out.py").stderr == "dp2ddp: none.ipynb: no such file\n"
    given = run("convert", "-", "-o", "-", given=notebook.read_bytes())
    assert given.stderr == "dp2ddp: <stdin>: a notebook, not a script; give it by a name that ends in .ipynb\n"


def test_large_outputs_do_not_matter(notebook: Path) -> None:
    content = nbformat.read(notebook, as_version=4)
    content.cells[1].outputs = [nbformat.v4.new_output("stream", text="x" * 20_000_000)]
    nbformat.write(content, notebook)
    assert run("convert", "train.ipynb", "-o", "out.py").exit_code == 0
    assert Path("out.py").stat().st_size < 10_000


def test_without_nbformat_it_says_what_to_install(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nbformat", None)
    done = run("convert", "train.ipynb", "-o", "out.py")
    message = "notebooks need nbformat; pip install nbformat"
    assert (done.exit_code, done.stderr) == (2, f"dp2ddp: train.ipynb: {message}\n")
    # One among other files doesn't keep these from being checked, and isn't passed over either.
    Path("train.py").write_text(f"{WRAP}\n")
    checked = run("check", ".", "--output-format", "concise")
    assert checked.exit_code == 1
    assert f"train.ipynb:1:1: refused: {message}\n" in checked.stdout
    assert "train.py:2:7: DDP002" in checked.stdout


def test_notebooks_of_a_folder_are_checked_and_left_as_they_are(notebook: Path, tmp_path_factory: Any) -> None:
    os.makedirs("a/.ipynb_checkpoints")
    making.write(Path("a/other.ipynb"), WRAP)
    making.write(Path("a/.ipynb_checkpoints/other-checkpoint.ipynb"), WRAP)
    making.write(Path("plain.ipynb"), "x = 1")
    found = json.loads(run("check", ".", "--format", "json").stdout)["findings"]
    assert {(each["file"], each["cell"]) for each in found} == {("a/other.ipynb", 1), ("train.ipynb", 2)}
    done = run("convert", ".", "-o", str(tmp_path_factory.mktemp("converted")))
    assert done.exit_code == 0, done.output
    assert "  a/other.ipynb: a notebook, which is left as it is; convert it by its own name" in done.stderr
    assert "plain.ipynb" not in done.stderr


def test_forms_that_know_lines_of_files_alone_name_the_cell_in_the_message(notebook: Path) -> None:
    lines = run("check", "train.ipynb", "--format", "concise").stdout.splitlines()
    assert lines[2].startswith("train.ipynb:cell 2:3:7: DDP002 ")
    for form in ("github", "sarif"):
        assert "cell 2, line 3: " in run("check", "train.ipynb", "--format", form).stdout
    assert "file=train.ipynb,line=1,col=1," in run("check", "train.ipynb", "--format", "github").stdout


def test_verify_names_the_cell_of_what_it_can_t_convert(notebook: Path) -> None:
    making.write(notebook, "x = 1", f"{WRAP}\nfrom torch.nn.parallel import DistributedDataParallel as DDP\nDDP(net)")
    done = run("verify", "train.ipynb")
    assert done.exit_code == 2
    assert done.stderr.startswith("dp2ddp: train.ipynb:cell 2:")
