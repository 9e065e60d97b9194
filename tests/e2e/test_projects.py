"""The fixtures that are more than a script with epochs: a project of several files, and a loop without epochs."""

from __future__ import annotations

import filecmp
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import fixture_data
import pytest
import torch
from click.testing import CliRunner

from dp2ddp.cli import main
from dp2ddp.verify.command import verifying
from dp2ddp.verify.compare.comparison import Comparison
from dp2ddp.verify.run.runs import Options
from dp2ddp.verify.start import cleanup

PROJECT = fixture_data.FIXTURES / "mnist_project"
GOLDEN = fixture_data.FIXTURES / "mnist_project_ddp"


def files(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


def test_the_project_s_conversion_is_the_golden_tree(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["convert", str(PROJECT), "-o", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert files(tmp_path / "out") == files(GOLDEN)
    match, mismatch, errors = filecmp.cmpfiles(tmp_path / "out", GOLDEN, files(GOLDEN), shallow=False)
    assert (mismatch, errors) == ([], [])
    assert len(match) == 15


def verdict_of(name: str, folder: Path, options: Options, *arguments: str) -> Comparison:
    """Both sides of a script of the project, compared."""
    given = (PROJECT / name, arguments, GOLDEN / name, options)
    with mock.patch.object(cleanup, "folder", return_value=nullcontext(folder)), verifying(*given) as verdict:
        assert verdict.failure is None, verdict.failure
        assert verdict.findings == []
        return verdict.comparison


@pytest.fixture
def in_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)  # it reads its configuration from there


@pytest.mark.parametrize(("arch", "replicas"), [("vgg_tiny", 3), ("plain", 2)])
@pytest.mark.usefixtures("in_project", "quick_starts")
def test_the_project_trains_the_same(arch: str, replicas: int, small_digits: Path, tmp_path: Path) -> None:
    options = Options(replicas, steps=10)
    done = verdict_of("train.py", tmp_path, options, "--data", str(small_digits), "--arch", arch, "--epochs", "1")
    assert len(done.steps) == 10


@pytest.mark.usefixtures("in_project", "quick_starts")
def test_the_project_s_checkpoints_are_the_same_and_load(small_digits: Path, tmp_path: Path) -> None:
    """Also the keys of a part that is wrapped, `features.module.`."""
    arguments = ["--data", str(small_digits), "--arch", "vgg_tiny"]
    done = verdict_of("train.py", tmp_path / "train", Options(2), *arguments, "--out", "out", "--epochs", "1")
    assert len(done.steps) > 15
    saved = done.converted.work / "out" / "checkpoint.pth.tar"
    keys = torch.load(saved, weights_only=False)["state_dict"].keys()
    assert {key.partition(".module.")[0] for key in keys if ".module." in key} == {"features"}
    tested = verdict_of("test.py", tmp_path / "test", Options(2), *arguments, "--checkpoint", str(saved))
    assert "test accuracy: " in tested.original.stdout


@pytest.mark.usefixtures("quick_starts")
def test_the_loop_without_epochs_trains_the_same(smaller_digits: Path, tmp_path: Path) -> None:
    script = fixture_data.original("mnist_iterations")
    arguments = ["--data", str(smaller_digits), "--max-iter", "12", "--val-every", "5", "--batch-size", "38"]
    converted = fixture_data.golden("mnist_iterations")
    with verifying(script, arguments, converted, Options(3)) as verdict:
        assert verdict.failure is None, verdict.failure
        assert verdict.findings == []
        assert len(verdict.comparison.steps) == 14  # two of them of both loaders zipped
