"""The demo's judgement: it reads what every fixture prints, and says so when runs differ."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import fixture_data
import pytest
from pairs import Pair, Pairs

from dp2ddp.verify.compare.comparison import Comparison
from dp2ddp.verify.compare.finding import Finding
from dp2ddp.verify.compare.steps import StepDifference
from dp2ddp.verify.run.runs import Options

sys.path[:0] = [str(fixture_data.FIXTURES)]
import demo  # noqa: E402


def two_epochs(pairs: Pairs, data: Path, name: str) -> Pair:
    """The pair that the tests of one rank start, too."""
    return pairs.run(name, ["--data", str(data), "--out", "out", "--epochs", "2"], Options(replicas=1))


@pytest.fixture(scope="module")
def comparison(pairs: Pairs, smaller_digits: Path) -> Comparison:
    return two_epochs(pairs, smaller_digits, "mnist_script").compared


def test_the_demo_reads_every_classifier() -> None:
    assert sorted(demo.PATTERNS) == sorted(fixture_data.CLASSIFIERS)


def test_no_accuracy_is_an_error() -> None:
    with pytest.raises(ValueError, match="no test accuracy"):
        demo.read_result("mnist_script", "epoch 1, loss: 0.5\n")


def test_each_difference_is_named(comparison: Comparison) -> None:
    before = demo.Result(("0.5", "0.4"), 96.0)
    moved = replace(
        comparison, steps=(StepDifference(1, "fc.weight", 0.02),), training=(Finding("batch", "batch 1: [1], [2]"),)
    )
    wrong = demo.verdict(moved, before, demo.Result(("0.5",), 95.0), exact=True)
    assert [text.split()[0] for text in wrong] == ["batch", "test", "2", "parameters"]
    assert demo.verdict(replace(moved, training=()), before, before, exact=False) == []


def test_the_table_shows_both(comparison: Comparison, capsys: pytest.CaptureFixture[str]) -> None:
    demo.show("title", comparison, demo.Result(("0.5", "0.4"), 96.0), demo.Result(("0.5", "0.3"), 95.0))
    table = capsys.readouterr().out
    for text in ("96.00 %", "95.00 %", "0.3", "same bits", "wall time"):
        assert text in table
