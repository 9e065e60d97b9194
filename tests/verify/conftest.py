"""A tiny DataParallel script, its conversion, and runs of both that tests share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent)]
import tiny  # noqa: E402
from nursery import Nursery  # noqa: E402

from dp2ddp.verify.run.runs import Run  # noqa: E402


@pytest.fixture(autouse=True)
def _forked(quick_starts: None) -> None:
    """All runs of these tests are forked."""


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `train.py`, as a user has it."""
    folder = tmp_path_factory.mktemp("workplace")
    tiny.lay_out(folder)
    return folder


@pytest.fixture(scope="session")
def original_run(workplace: Path, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The original's run on two replicas, with which the conversions are compared."""
    with nursery.installed():
        return tiny.run_original(workplace, tmp_path_factory.mktemp("original"))
