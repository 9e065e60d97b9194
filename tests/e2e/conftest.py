"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent)]
from pairs import Pairs  # noqa: E402


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Original and converted runs, started once a session."""
    return Pairs(tmp_path_factory.mktemp("pairs"))
