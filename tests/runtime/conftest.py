"""Fixtures of the runtime's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
from rank_pool import RankPool  # noqa: E402


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Rank processes: `ranks(n, fn, *args)` runs a module-level function on each of `n` ranks."""
    pool = RankPool()
    yield pool
    pool.close()
