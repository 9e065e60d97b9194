"""`convert --html`: which page for which outcome, where it may be written, and what the command says of it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dp2ddp.cli import main
from dp2ddp.rules import all_rules

SCRIPT = """\
import torch
import torch.nn as nn
from torch.utils.data import DataLoader

loader = DataLoader(torch.rand(64, 4), batch_size=16, shuffle=True)
net = nn.DataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
torch.save(net.state_dict(), "net.pt")
"""
NOTED = "import sqlite3\n" + SCRIPT.replace("net = ", "log = sqlite3.connect('log.db')\nnet = ")
REFUSED = "import torch.nn as nn\n\nprint(nn.DataParallel.forward)\n"

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command in an empty folder with train.py in it."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    return lambda *arguments, **more: CliRunner().invoke(main, ["convert", *arguments], **more)


def _page(name: str = "report.html") -> str:
    """What a page says, without its marks."""
    text = Path(name).read_text("utf-8")
    body = re.sub(r"<(style|script|title)\b.*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", body)).split())


def test_a_conversion_has_its_page(run: Run) -> None:
    done = run("train.py", "-o", "out.py", "--html", "report.html")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.endswith("report.html: the same as a page, for a browser\n")
    page = _page()
    assert "Converted It starts a process for each GPU that it wraps a model for." in page
    assert "They train on the original's batches; the first one alone prints and writes files." in page
    changes = re.search(r"(\d+) changes in 1 file. Nothing is left for a person.", page)
    assert changes is not None
    assert f"train.py -> out.py: {changes[1]} changes\n" in done.stderr
    for said in ("python out.py", "dp2ddp_runtime must be there"):
        assert said in done.stderr
        assert said in page


def test_each_change_has_its_rule_and_the_reason(run: Run) -> None:
    run("train.py", "-o", "out.py", "--html", "report.html")
    text = Path("report.html").read_text("utf-8")
    for rule in ("DDP001", "DDP002", "DDP005", "DDP008"):
        found = re.search(rf'<span class="rule">{rule}</span> <strong>.*</strong>: .*</summary>\n<p>(.+)</p>', text)
        assert found is not None
        why = next(each.why for each in all_rules() if each.id == rule)
        assert _flat(found[1]) == " ".join(why.replace("`", "").split())
    _check_links(text)


def _flat(markup: str) -> str:
    return html.unescape(re.sub("<[^>]*>", "", markup))


def _check_links(text: str) -> None:
    links = set(re.findall(r'href="#([^"]+)"', text))
    ids = re.findall(r' id="([^"]+)"', text)
    assert links <= set(ids), "every link has its target on the page"
    assert len(ids) == len(set(ids)), "no name twice"


def test_without_an_output_it_is_a_preview(run: Run) -> None:
    done = run("train.py", "--html", "report.html")
    assert done.exit_code == 0
    assert done.stdout.startswith("--- train.py\n")
    assert sorted(path.name for path in Path().iterdir()) == ["report.html", "train.py"]
    page = _page()
    assert "Preview It starts a process for each GPU" in page
    assert "This is a preview: nothing was written but this page." in page
    assert "Add -o train_ddp.py to write it; then" in page


def test_notes_come_first(run: Run) -> None:
    Path("train.py").write_text(NOTED)
    done = run("train.py", "-o", "out.py", "--strict", "--html", "report.html")
    assert done.exit_code == 1
    page = _page()
    assert "Converted, with open notes" in page
    assert "1 note for a person to look at." in page
    todo = page.index("To do: write it by ddp.main_only(...)")
    assert page.index("1 note for a person to look at.") < todo < page.index("How to run it")


def test_a_note_has_the_same_key_on_every_page(run: Run) -> None:
    keys = []
    for text in (NOTED, "# moved\n\n" + NOTED):
        Path("train.py").write_text(text)
        run("train.py", "--html", "report.html")
        keys += re.findall(r'data-remember="(note:\w+)"', Path("report.html").read_text("utf-8"))
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_a_refused_script_has_a_page_that_says_why(run: Run) -> None:
    Path("train.py").write_text(REFUSED)
    done = run("train.py", "-o", "out.py", "--html", "report.html")
    assert done.exit_code == 2
    assert not Path("out.py").exists()
    page = _page()
    assert "Not converted It can't be converted as it is." in page
    assert "`" not in page.split("What stands in the way")[0], "names stand as code"
    assert "What stands in the way" in page
    assert "How to run" not in page


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("no/report.html", "no such folder"),
        (".", "a directory"),
        ("", "an empty name"),
        ("-", "a page can't go to standard output"),
        ("notes.txt", "exists already, and is no page of dp2ddp"),
        ("train.py", "exists already, and is no page of dp2ddp"),
        ("out.py", "the page would take the place of an input or of the output"),
        ("./out.py", "the page would take the place of an input or of the output"),
    ],
)
def test_a_page_that_can_t_be_written_is_one_line_and_nothing_else(run: Run, place: str, why: str) -> None:
    Path("notes.txt").write_text("mine")
    before = {path.name: path.read_text() for path in Path().iterdir()}
    done = run("train.py", "-o", "out.py", "--html", place)
    assert done.exit_code == 2
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path.name: path.read_text() for path in Path().iterdir()} == before


def test_force_does_not_reach_the_script_itself(run: Run) -> None:
    done = run("train.py", "--force", "--html", "train.py")
    assert done.exit_code == 2
    assert Path("train.py").read_text() == SCRIPT


def test_a_page_takes_the_place_of_an_older_one(run: Run) -> None:
    run("train.py", "--html", "report.html")
    Path("train.py").write_text("print(1)\n")
    assert run("train.py", "--html", "report.html").exit_code == 0
    assert "Nothing to convert" in _page()


def test_a_folder_has_a_page_with_all_its_files(run: Run) -> None:
    project = Path("project")
    (project / "lib").mkdir(parents=True)
    (project / "train.py").write_text(
        "from lib.net import build\n\n" + SCRIPT.replace("nn.DataParallel(nn.Linear(4, 2))", "build()")
    )
    (project / "lib/__init__.py").write_text("")
    (project / "lib/net.py").write_text(
        "import torch.nn as nn\n\n\ndef build():\n    return nn.DataParallel(nn.Linear(4, 2))\n"
    )
    (project / "other.py").write_text(
        "import torch.nn.parallel.distributed\nimport torch.nn as nn\nfor x in vars(nn.DataParallel): print(x)\n"
    )
    done = run("project", "-o", "out", "--html", "report.html", "--entry", "train.py")
    assert done.exit_code == 0, done.stderr
    page = _page()
    assert "in 2 files" in page
    text = Path("report.html").read_text("utf-8")
    leaves = re.findall(r'<li class="leaf"[^>]*><a href="#(f\d)">([\w/]+\.py)</a>', text)
    assert sorted(name for _, name in leaves) == ["lib/net.py", "train.py"]
    assert "python out/train.py" in page
    preview = run("project", "--html", "report.html", "--entry", "train.py")
    assert preview.exit_code == 0
    assert "Add -o converted/ to write it; then" in _page()
    assert "python converted/train.py" in _page()


def test_several_scripts_and_in_place(run: Run) -> None:
    Path("test.py").write_text(SCRIPT.replace("net.pt", "other.pt"))
    run("train.py", "test.py", "--html", "report.html")
    assert "Add --in-place to write them; then" in _page()
    run("train.py", "--in-place", "--html", "report.html")
    assert "python train.py" in _page()
    run("train.py", "--html", "report.html")
    assert "Converted already" in _page()


def _notebook(*cells: str) -> str:
    made = [{"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": c} for c in cells]
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 4})


def test_a_notebook_is_named_by_its_cells(run: Run) -> None:
    start, net, rest = NOTED.partition("log = ")
    Path("train.ipynb").write_text(_notebook(f"!pip install x\n{start}", net + rest))
    assert run("train.ipynb", "-o", "out.py", "--html", "report.html").exit_code == 0
    page = _page()
    assert "train.ipynb:cell 2:1 DDP011" in page
    assert "The notebook's code cells, one below the other." in page
    assert "python out.py" in page
    _check_links(Path("report.html").read_text("utf-8"))
