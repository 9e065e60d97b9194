"""The page of a verdict: what it says, and how it looks and works in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from browser import Browser
from click.testing import CliRunner, Result
from nursery import Nursery

from dp2ddp.cli import main

HOSTILE = "</script><img src=x onerror=alert(1)>\\x1b[31m"
LOUD = tiny.ORIGINAL.replace("criterion =", f'print("{HOSTILE}")\ncriterion =').replace("range(3)", "range(12)")
LOUD = LOUD.replace("optimizer.step()\n", "optimizer.step()\n\n")  # an empty line where the code is shown
BROKEN = ("optimizer.step()", "[p.grad.mul_(1.5 if epoch == 2 else 1) for p in net.parameters()]; optimizer.step()")


@pytest.fixture(scope="module")
def pages(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of scripts that agree, that differ from step 7 on, and of one that fails."""
    here = tmp_path_factory.mktemp("pages")
    tiny.lay_out(here, LOUD)
    (here / "wrong.py").write_text(tiny.converted(LOUD).replace(*BROKEN))
    (here / "fails.py").write_text(LOUD + f"raise ValueError('{HOSTILE}')\n")
    asked = {"agree": ["train.py"], "differ": ["train.py", "--converted", "wrong.py"], "fail": ["fails.py"]}
    with nursery.installed(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        for code, (name, arguments) in enumerate(asked.items()):
            result = _verify(*arguments, "--quiet", "--html", f"{name}.html")
            assert result.exit_code == code, result.output
    return {name: here / f"{name}.html" for name in asked}


def _verify(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["verify", *arguments])


def test_they_open_in_silence(browser: Browser, pages: dict[str, Path]) -> None:
    for page in pages.values():
        browser.opens_in_silence(page)


def test_agreement_comes_first_with_all_that_was_compared(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["agree"])
    assert browser.shown(".verdict .badge") == ["Agree"]
    said = browser.one(".sentence").text
    assert said == "They agree: 36 optimizer steps (same bits), 36 losses, 14 printed lines, 1 file."
    rows = [row.text.split("\n")[-1] for row in browser.all("table.compared tbody tr")]
    assert rows[0] == "parameters 36 steps the same bits"
    assert "files written 1 file the same" in rows
    assert browser.all("#findings") == []


def test_what_differs_is_told_with_step_parameter_cause_and_line(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["differ"])
    assert browser.shown(".verdict .badge") == ["Differ"]
    assert browser.one(".sentence").text.startswith("The scripts part at optimizer step 7: ")
    first = browser.all(".findings > li")[0].text
    assert " at optimizer step 7" in first.split("\n")[0]
    assert "Likely cause: the gradients are 1.5 times the original's" in first
    assert "Parameter: " in first
    line = next(n for n, text in enumerate(LOUD.splitlines(), start=1) if "optimizer.step()" in text)
    assert f"Seen at train.py:{line} of the original" in first
    (here,) = browser.all(".findings > li:first-child .here")
    assert (here.get_attribute("data-n"), here.text.strip()) == (str(line), "optimizer.step()")
    heights = "return [...document.querySelectorAll('.excerpt .l')].map(each => each.offsetHeight)"
    assert min(browser.run(heights)) > 15, "the number of an empty line needs its place, too"
    assert browser.one(".output").is_displayed()
    wrong = [each.text for each in browser.all("del.l, ins.l")]
    assert wrong
    assert all("epoch" in each for each in wrong)


def test_a_script_that_fails_is_told_in_its_own_words(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["fail"])
    assert browser.shown(".verdict .badge") == ["Could not run"]
    said = browser.one("pre.said").text
    line = len(LOUD.splitlines()) + 1
    assert f'File "fails.py", line {line}, in <module>' in said
    assert "fork_server.py" not in said
    assert "run_script.py" not in said
    assert browser.run("return document.images.length") == 0
