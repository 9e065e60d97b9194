"""The pytest fixture `dp2ddp_compare`, used as a project uses it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tiny

pytest_plugins = ["pytester"]

TESTS = """
import pytest

def test_right(dp2ddp_compare):
    both = dp2ddp_compare("train.py", nproc=2, steps=9, synthetic_data=True)
    assert both.verdict.options.synthetic == 256
    both.assert_same_training()
    assert len(both.original.losses) == len(both.converted.losses) == 9

def test_wrong(dp2ddp_compare):
    both = dp2ddp_compare("train.py", converted="wrong.py")
    assert list(both.original.files) == ["net.pt"]
    with pytest.raises(pytest.fail.Exception, match="step 1: .*all gradients are 2 times the original's"):
        both.assert_same_training()
    assert both.original.output.count("accuracy") == both.converted.output.count("accuracy") == 3

def test_fails(dp2ddp_compare):
    dp2ddp_compare("fails.py", args=["x"])
"""


def test_the_fixture_compares_and_says_what_differs(
    request: pytest.FixtureRequest, pytester: pytest.Pytester, workplace: Path
) -> None:
    wrong = tiny.edited(
        ("        optimizer.step()", "        [p.grad.mul_(2) for p in net.parameters()]\n        optimizer.step()")
    )
    scripts = {path.name: path.read_text() for path in workplace.iterdir() if path.is_file()}
    scripts |= {"wrong.py": wrong, "fails.py": tiny.ORIGINAL + "\nraise ValueError('on purpose')\n"}
    for name, text in scripts.items():
        (pytester.path / name).write_text(text)
    pytester.makepyfile(TESTS)
    # Where dp2ddp is installed pytest finds the plugin by itself, and loads it once only.
    plugin = [] if request.config.pluginmanager.hasplugin("dp2ddp") else ["-p", "dp2ddp.verify.plugin"]
    result = pytester.runpytest_inprocess(*plugin, "-q", "--durations=9")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*ValueError: on purpose*", "*the original script could not run*"])


def test_the_plugin_imports_nothing_heavy(pytester: pytest.Pytester) -> None:
    code = "import sys, dp2ddp.verify.plugin; print(sorted({'torch', 'libcst', 'rich', 'click'} & sys.modules.keys()))"
    result = pytester.run(sys.executable, "-c", code)
    assert result.outlines == ["[]"]
