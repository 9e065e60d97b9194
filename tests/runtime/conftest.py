"""Fixtures of the runtime's tests: ranks on the CPU, and on pretend CUDA devices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
pytest.register_assert_rewrite("rank_pool")
from rank_pool import RankPool  # noqa: E402

#: Pretend CUDA devices that there are: as many as tests have replicas.
DEVICES = 2


@pytest.fixture(scope="session")
def pools(request: pytest.FixtureRequest) -> Iterator[Callable[[str], RankPool]]:
    """Rank processes by where they compute: `pools("cpu")`, `pools("cuda")`, which is pretended, or skips the test."""
    made: dict[str, RankPool] = {}

    def pool(where: str) -> RankPool:
        if where == "cuda":
            request.getfixturevalue("pretended")
        if where not in made:
            made[where] = RankPool(DEVICES if where == "cuda" else 0)
        return made[where]

    yield pool
    for each in made.values():
        each.close()


@pytest.fixture
def ranks(request: pytest.FixtureRequest, pools: Callable[[str], RankPool]) -> RankPool:
    """Rank processes: `ranks(n, fn, *args)` runs a module-level function on each of `n` ranks.

    On the CPU, or where an indirect parameter says.
    """
    return pools(getattr(request, "param", "cpu"))
