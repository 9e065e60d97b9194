"""Each fixture, trained before and after its conversion: the promises of the README, end to end."""

from __future__ import annotations

import re
from pathlib import Path

import fixture_data
import pytest
import torch
from pairs import Pairs
from starts import TORCHRUN, Warm

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options as ConvertOptions
from dp2ddp.verify.compare import printed
from dp2ddp.verify.compare.comparison import Comparison
from dp2ddp.verify.run.runs import Options

EXACT_STEPS = 100  # float32 on two ranks stays this close for so long; then rounding grows by itself
#: Trained until they recognize 95 %, in float32: by how many epochs.
WHOLE = {"mnist_files": 5, "mnist_functions": 3, "mnist_loss_in_model": 3, "mnist_script": 3}
#: All others, for a dozen steps in float64: by which arguments.
SHORT = {
    "mnist_adapt": ["--epochs", "2"],
    "mnist_amp_accumulate": ["--epochs", "4"],
    "mnist_cached": ["--epochs", "3", "--name", "run"],
    "mnist_contrastive": ["--epochs", "2", "--probe_epochs", "2"],
    "mnist_distill": ["--epochs", "2"],
    "mnist_gan": ["--epochs", "2", "--batchSize", "32"],
    "mnist_own_ddp": ["--epochs", "3"],
    "mnist_rnn": ["--epochs", "2"],
    "mnist_torchrun": ["--epochs", "3"],
    "mnist_trainer": ["--epochs", "3"],
    "mnist_vae": ["--epochs", "3", "--batch-size", "32"],
    "mnist_weighted": ["--epochs", "3"],
}
RANKS = {"mnist_distill": 3, "mnist_own_ddp": 3}  # else 2


@pytest.fixture(scope="session")
def few_digits(smaller_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough for a few steps."""
    subset: Path = fixture_data.digits.subset(smaller_digits, tmp_path_factory.mktemp("few"), 151, 53)
    return subset


def accuracy(output: str) -> float:
    """The test accuracy that a fixture prints last, in percent."""
    found = re.findall(r"(?:test acc(?:uracy)?|best accuracy)\D*([\d.]+)", output, re.IGNORECASE)
    value = float(found[-1])
    return value if value > 1 else 100 * value


def arguments(data: Path, epochs: int | None = None) -> list[str]:
    return ["--data", str(data), "--out", "out", *(["--epochs", str(epochs)] if epochs else [])]


def largest(comparison: Comparison, steps: int | None = None) -> float:
    return max(step.relative for step in comparison.steps[:steps])


@pytest.mark.parametrize("name", fixture_data.names())
def test_conversion_is_the_golden_file(name: str) -> None:
    source = fixture_data.original(name).read_text()
    conversion = convert_source(source, f"{name}/train.py", fixture_data.OPTIONS.get(name, ConvertOptions()))
    assert conversion.new_text == fixture_data.golden(name).read_text()


def test_each_fixture_is_trained_somewhere() -> None:
    assert sorted([*SHORT, *WHOLE, "mnist_iterations"]) == fixture_data.names()


def test_one_rank_does_exactly_what_the_original_does(pairs: Pairs, few_digits: Path) -> None:
    """Here with a loss inside of the model."""
    pair = pairs.run("mnist_loss_in_model", arguments(few_digits, 3), Options(replicas=1))
    comparison = pair.compared
    assert comparison.findings == []
    assert (largest(comparison), sum(comparison.losses), comparison.lines, comparison.files) == (0.0, 0.0, [], {})


@pytest.mark.parametrize("name", WHOLE)
def test_two_ranks_do_as_the_original(pairs: Pairs, even_digits: Path, name: str) -> None:
    """The same updates, numbers that are printed once, accuracy, files and keys in them."""
    pair = pairs.run(name, arguments(even_digits, WHOLE[name]), Options(replicas=2))
    comparison = pair.compared
    assert len(comparison.steps) >= EXACT_STEPS
    assert [each for each in comparison.training if each.kind in ("count", "batch", "apart")] == []
    assert max(largest(comparison, EXACT_STEPS), *comparison.losses[:EXACT_STEPS]) <= 1e-6
    assert pair.original.stdout.count("\n") >= 3
    assert pair.converted.output(1, "stdout") == ""
    # A number on the edge between two last digits may fall to either side.
    assert [line for line in comparison.lines if line.places is None or line.places > 1] == []
    assert accuracy(pair.converted.stdout) == accuracy(pair.original.stdout) >= 95
    ours, theirs = pair.original.files(), pair.converted.files()
    assert ours.keys() == theirs.keys()
    assert [place for places in comparison.files.values() for place in places if place.relative > 1e-4] == []
    checkpoints = [file for file in ours if Path(file).suffix in {".pt", ".pth", ".tar"}]
    assert checkpoints
    assert [list(torch.load(ours[file])) for file in checkpoints] == [
        list(torch.load(theirs[file])) for file in checkpoints
    ]


@pytest.mark.parametrize("name", SHORT)
def test_ranks_take_the_original_s_steps(pairs: Pairs, few_digits: Path, name: str) -> None:
    options = Options(replicas=RANKS.get(name, 2), float64=True)
    pair = pairs.run(name, [*arguments(few_digits), *SHORT[name]], options)
    comparison = pair.compared  # scripts that count in float32 themselves may print another last digit
    assert comparison.findings == []
    assert len(comparison.steps) >= 12
    assert pair.original.stdout.count("\n") >= 2
    assert pair.original.files()
    assert max(comparison.worst, *comparison.losses) <= 1e-9


def test_checkpoints_resume_on_the_other_side(pairs: Pairs, few_digits: Path) -> None:
    """Each side goes on from the other's file, and both end where they would have on their own."""
    name, options = "mnist_functions", Options(replicas=2, float64=True)
    first = pairs.run(name, arguments(few_digits, 1), options)
    saved = [str(run.work / "out" / "checkpoint.pth.tar") for run in (first.converted, first.original)]
    more = arguments(few_digits, 2)
    resumed = pairs.run(name, [*more, "--resume", saved[0]], options, converted=[*more, "--resume", saved[1]])
    comparison = resumed.compared
    assert len(comparison.steps) == len(first.compared.steps)
    paths = [line for line in comparison.lines if line.original and ".pth.tar" not in line.original]
    assert paths == []
    assert largest(comparison) <= 1e-9
    assert accuracy(resumed.original.stdout) == accuracy(resumed.converted.stdout)


def test_launched_as_users_launch(tmp_path: Path, pairs: Pairs, warm: Warm, few_digits: Path) -> None:
    """`python train_ddp.py` starts its own ranks; torchrun starts them from outside. One output, no noise."""
    name = "mnist_trainer"
    expected = pairs.run(name, arguments(few_digits, 1), Options(replicas=2)).converted.stdout
    script = [str(fixture_data.golden(name)), *arguments(few_digits, 1)]
    env = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    plain = warm.start(*script, cwd=tmp_path, env=env, forked=True)
    launched = warm.start(*TORCHRUN, *script, cwd=tmp_path, nproc=None, env=env, forked=True)
    for result in (plain, launched):
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines() == expected.splitlines()
        assert list(printed.differences(result.stderr, "")) == []
