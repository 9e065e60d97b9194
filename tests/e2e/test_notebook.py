"""A notebook as people write them on Kaggle trains the same, converted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import fixture_data
import pytest
from click.testing import CliRunner

from dp2ddp.cli import main

NOTEBOOK = fixture_data.FIXTURES / "notebook" / "digits.ipynb"


@pytest.mark.usefixtures("quick_starts")
def test_the_converted_notebook_trains_the_same_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(NOTEBOOK, tmp_path)
    done = CliRunner().invoke(main, ["verify", "digits.ipynb", "--nproc", "2"])
    assert done.exit_code == 0, done.output
    assert "They agree: 24 optimizer steps (same bits), 24 losses" in done.output
    assert os.listdir() == ["digits.ipynb"]
