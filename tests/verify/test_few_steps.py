"""The fixtures that need more than a plain classifier's conversion, trained a few steps before and after it.

`tests/e2e` trains the classifiers for longer, and `dp2ddp verify` shows a hundred steps of any of them.
"""

from __future__ import annotations

from pathlib import Path

import fixture_data
import pytest

from dp2ddp.verify.compare.causes import explain
from dp2ddp.verify.compare.comparison import compare
from dp2ddp.verify.run import runs
from dp2ddp.verify.start import client

#: Arguments with which each makes a dozen steps or more on `few_digits`.
ARGUMENTS = {
    "mnist_amp_accumulate": ["--epochs", "4"],
    "mnist_contrastive": ["--epochs", "3", "--probe_epochs", "2"],
    "mnist_gan": ["--epochs", "2", "--batchSize", "32"],
    "mnist_rnn": ["--epochs", "3"],
    "mnist_vae": ["--epochs", "3", "--batch-size", "32"],
    "mnist_weighted": ["--epochs", "3"],
}


@pytest.fixture(scope="module")
def few_digits(sklearn_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """131 images to train on and 41 to test: the last batches are ragged, and split unevenly."""
    subset: Path = fixture_data.digits.subset(sklearn_digits, tmp_path_factory.mktemp("few"), 131, 41)
    return subset


def test_each_fixture_is_trained_somewhere() -> None:
    in_e2e = [*fixture_data.CLASSIFIERS, "mnist_iterations"]
    assert sorted([*ARGUMENTS, *in_e2e]) == fixture_data.names()


@pytest.mark.parametrize("name", list(ARGUMENTS))
def test_two_ranks_train_as_the_original(name: str, few_digits: Path, tmp_path: Path) -> None:
    arguments = ["--data", str(few_digits), "--out", "out", *ARGUMENTS[name]]
    options = runs.Options(replicas=2, float64=True)
    server = client.ForkServer()
    with (
        runs.start(
            fixture_data.original(name), arguments, tmp_path / "original", options, server, original=True
        ) as before,
        runs.start(fixture_data.golden(name), arguments, tmp_path / "converted", options, server) as after,
    ):
        pair = before.wait(), after.wait()
    for run in pair:
        assert run.exit_code == 0, run.stderr
    # Scripts that count in float32 themselves may print another last digit.
    comparison = compare(*pair)
    assert explain(comparison) == []
    assert len(comparison.steps) >= 12
    assert comparison.original.stdout.count("\n") >= 2
    assert comparison.original.files()
    assert comparison.worst.relative <= 1e-9
