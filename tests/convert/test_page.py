"""`convert --html`: which page for which outcome, where it may be written, and what the command says of it."""

from __future__ import annotations

import html
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
        ("-", "a page can't go to standard output"),
        ("train.py", "exists already, and is no page of dp2ddp"),
        ("out.py", "the page would take the place of an input or of the output"),
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


def test_what_scripts_say_stays_text(run: Run) -> None:
    """What ends an element, what a terminal obeys, what turns text around."""
    hostile = (
        "</script></style><img src=x onerror='evil()'>\x1b[31m \u202e \u2066 \u200b \U000e0041 {{ 7 * 7 }} שלום, é, 漢"
    )
    name = "<b>net.py"
    Path(name).write_text(f'{SCRIPT}print("{hostile}")\ntorch.save(net, "</title><b>.pt\x07")\n')
    assert run(name, "--html", "report.html").exit_code == 0
    text = Path("report.html").read_text("utf-8")
    assert not set("\x1b\u202e\u2066\u200b\U000e0041\x07") & set(text)
    assert "\\x1b[31m \\u202e \\u2066 \\u200b \\U000e0041 {{ 7 * 7 }} שלום, é, 漢" in _page()
    assert not re.search("<img|<b>", text)
    assert text.count("<script") == text.count("</script>") == 1
