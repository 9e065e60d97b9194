"""The page of a conversion in a real browser: opened, expanded, searched, ticked; both themes, wide and narrow."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from browser import NARROW, WIDE, Browser
from click.testing import CliRunner

from dp2ddp.cli import main

PROJECT = Path(__file__).parents[2] / "fixtures/mnist_project"
# As a script may have them: what ends an element, what a terminal obeys, what turns text around.
NAME = "</script><img src=x onerror=evil()>\u202egnp\x1b[31m.py"
HOSTILE = """\
import torch
import torch.nn as nn
from torch.utils.data import DataLoader

"</script></style></code></details><script>window.evil = 1</script><img src=x onerror='window.evil = 1'>"
"\x1b[31m \u202e reversed \u2066 hidden\u200b שלום {{ 7 * 7 }} {% raw %}"
loader = DataLoader(torch.rand(64, 4), batch_size=16)


def gpus():
    return [0, 1]


net = nn.DataParallel(nn.Linear(4, 2), device_ids=gpus())  # "><b>bold</b>
for x in loader:
    net(x).mean().backward()
torch.save(net.state_dict(), "</title><b>net</b>.pt\x07")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a project of five changed files, in a folder of its own."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(PROJECT, folder / "mnist")
    return _convert(folder, "mnist", "--html", "report.html")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    target = folder / NAME.replace("/", "\u2215")
    target.write_text(HOSTILE)
    return _convert(folder, target.name, "--html", "report.html")


def _convert(folder: Path, *arguments: str) -> Path:
    before = Path.cwd()
    os.chdir(folder)
    try:
        done = CliRunner().invoke(main, ["convert", *arguments])
    finally:
        os.chdir(before)
    assert done.exit_code == 0, done.stderr
    return folder / "report.html"


def test_it_opens_in_silence(browser: Browser, project: Path) -> None:
    browser.opens_in_silence(project, unfolded=True)
    assert browser.shown(".badge") == ["Preview"]
    assert browser.run("return document.documentElement.lang") == "en"
    landmarks = ("header", "aside", "nav", "main", "footer", "search")
    assert all(browser.one(each).is_displayed() for each in landmarks)


def test_searching_leaves_what_fits(browser: Browser, project: Path) -> None:
    browser.open(project)
    files = len(browser.all("details.file"))
    field = browser.one("#filter")
    field.send_keys("checkpoint.py")
    assert browser.shown(".leaf a") == ["utils/checkpoint.py"]
    assert [each.is_displayed() for each in browser.all("details.file")].count(True) == 1
    assert browser.one("#found").text.startswith(f"1 of {files} files")
    field.clear()
    field.send_keys("zebra stripes")
    assert browser.one("#found").text.startswith(f"0 of {files} files")
    field.send_keys("\ue00c")  # Escape
    assert [each.is_displayed() for each in browser.all("details.file")].count(True) == files
    field.send_keys("DDP008")
    assert browser.shown(".leaf a") == ["utils/checkpoint.py"]


def test_what_scripts_say_stays_text(browser: Browser, hostile: Path) -> None:
    for width in (WIDE, NARROW):
        browser.open(hostile, width=width)
        browser.run("for (const each of document.querySelectorAll('details')) each.open = true")
        assert browser.run("return window.evil") is None
        assert browser.run("return document.images.length + document.querySelectorAll('b').length") == 0
        assert browser.run("return document.scripts.length") == 1
        assert not browser.overflows()
        assert browser.complaints() == []
        text = browser.run("return document.body.textContent")
        assert "\x1b" not in text
        assert not set("\u202e\u2066\u200b\x07") & set(text)
        assert "\\x1b[31m \\u202e reversed \\u2066 hidden\\u200b שלום {{ 7 * 7 }} {% raw %}" in text
        assert "onerror=evil()>\\u202egnp\\x1b[31m.py" in browser.run("return document.querySelector('h1').textContent")
        assert "</title><b>net</b>.pt\\x07" in text
    assert "\\u202egnp" in browser.driver.title


def test_notes_are_ticked_off_for_good(browser: Browser, hostile: Path) -> None:
    browser.open(hostile)
    assert browser.one("#ticked").text == "0"
    browser.one(".todos label").click()
    assert browser.one("#ticked").text == "1"
    browser.driver.refresh()
    assert browser.one("#ticked").text == "1"
    assert browser.one(".todos input").is_selected()
    assert "line-through" in browser.run(
        "return getComputedStyle(document.querySelector('.todos label')).textDecoration"
    )


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a script with 200 modules, all of which have to change."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "p/parts").mkdir(parents=True)
    filler = "".join(f"def helper_{n}(a, b):\n    c = a + b * {n}\n    return c\n\n\n" for n in range(8))
    for n in range(200):
        change = f"def store_{n}(net):\n    torch.save(net.state_dict(), 'net-{n}.pt')\n    return {n}\n"
        (folder / f"p/parts/part_{n}.py").write_text(f"import torch\n\n\n{filler}{change}\n\n{filler}")
    names = [f"from parts.part_{n} import store_{n}\n" for n in range(200)]
    calls = [f"store_{n}(net)\n" for n in range(200)]
    train = ["import torch\nimport torch.nn as nn\n", *names, "net = nn.DataParallel(nn.Linear(4, 2))\n", *calls]
    (folder / "p/train.py").write_text("".join(train))
    return _convert(folder, "p", "--html", "report.html")
