"""Data that tests share, made once a session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path[:0] = [str(Path(__file__).parent)]
import fixture_data  # noqa: E402
from nursery import Nursery  # noqa: E402

if TYPE_CHECKING:
    from browser import Browser

# Odd sizes, so that last batches are ragged and split unevenly over 2 and over 3 ranks.
SMALL_TRAIN, SMALL_TEST = 1207, 301


#: Whole trainings and real starts: left out by `-m "not slow"`.
_SLOW = ("tests/e2e/", "tests/benchmarks/", "tests/runtime/test_launch.py", "tests/runtime/test_converted_files.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(_SLOW):
            item.add_marker("slow")


@pytest.fixture(scope="session")
def sklearn_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`--data` for a fixture script: scikit-learn's digits, enough to reach 95 % in seconds."""
    return fixture_data.prepare_sklearn(tmp_path_factory.mktemp("sklearn"))


@pytest.fixture(scope="session")
def even_digits(sklearn_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many of scikit-learn's digits as give every fixture ragged last batches that halve evenly.

    Two even shards round as the whole batch does, so float32 can be compared bit by bit; of 18 and 17 samples it
    can't, and BatchNorm with Adam makes 1e-4 of that within 100 steps.
    """
    subset: Path = fixture_data.digits.subset(sklearn_digits, tmp_path_factory.mktemp("even"), 1420, 359)
    return subset


@pytest.fixture(scope="session")
def small_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`--data` for a fixture script: 1,207 images to train on and 301 to test, MNIST's where they are at hand."""
    whole = fixture_data.prepare_real(tmp_path_factory.mktemp("digits"))
    target = tmp_path_factory.mktemp("small")
    subset: Path = fixture_data.digits.subset(whole, target, SMALL_TRAIN, SMALL_TEST)
    return subset


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where runs are forked from: importing torch is most of a short run."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def quick_starts(nursery: Nursery) -> Iterator[None]:
    """All runs of a test are forked."""
    with nursery.installed():
        yield


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser without a window; tests that need one are skipped where there is none."""
    from browser import Browser  # with selenium, which the oldest environment has no need of

    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()
