"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent)]
from nursery import Nursery  # noqa: E402
from pairs import Pairs  # noqa: E402


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> Pairs:
    """Original and converted runs, forked once a session."""
    return Pairs(tmp_path_factory.mktemp("pairs"), nursery)
