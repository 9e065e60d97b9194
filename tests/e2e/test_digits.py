"""The digits that fixtures train on: every source leaves what torchvision's MNIST reads."""

from __future__ import annotations

import gzip
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import fixture_data
import pytest
import torch

digits = fixture_data.digits


@pytest.fixture(scope="module")
def mnist() -> Any:
    """torchvision's class: importing it takes seconds, in each process that collects tests."""
    return importlib.import_module("torchvision.datasets").MNIST


@pytest.fixture(scope="module")
def flat(sklearn_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as people have it: some files packed, some not, no MNIST/raw."""
    folder = tmp_path_factory.mktemp("flat")
    for index, name in enumerate(digits.FILES):
        data = (digits.raw_folder(sklearn_digits) / name).read_bytes()
        packed = index % 2 == 0
        (folder / f"{name}{'.gz' if packed else ''}").write_bytes(gzip.compress(data) if packed else data)
    return folder


def test_a_folder_is_copied_and_unpacked(mnist: Any, flat: Path, sklearn_digits: Path, tmp_path: Path) -> None:
    assert digits.prepare(tmp_path / "new", flat) == tmp_path / "new"
    copied, expected = (mnist(str(root), train=False) for root in (tmp_path / "new", sklearn_digits))
    assert torch.equal(copied.data, expected.data)
    assert torch.equal(copied.targets, expected.targets)


def test_a_folder_without_the_files_is_an_error_of_one_line(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(fixture_data.FIXTURES / "digits.py"),
        str(tmp_path / "new"),
        "--source",
        str(tmp_path),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.splitlines() == [f"digits.py: {tmp_path}: no {digits.FILES[0]} or {digits.FILES[0]}.gz in it"]


def test_without_source_and_network_the_digits_are_scikit_learn_s(
    mnist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_network(*args: object, **kwargs: object) -> None:
        raise RuntimeError("Error downloading train-images-idx3-ubyte.gz")

    monkeypatch.delenv("DP2DDP_MNIST", raising=False)
    monkeypatch.setattr(mnist, "download", no_network)
    digits.prepare(tmp_path)
    assert "scikit-learn" in capsys.readouterr().out
    assert digits.complete(digits.raw_folder(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["MNIST"]
