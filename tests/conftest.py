"""Data that tests share, made once a session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent)]
import fixture_data  # noqa: E402

# Odd sizes, so that last batches are ragged and split unevenly over 2 and over 3 ranks.
SMALL_TRAIN, SMALL_TEST = 1207, 301


@pytest.fixture(scope="session")
def sklearn_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`--data` for a fixture script: scikit-learn's digits, enough to reach 95 % in seconds."""
    return fixture_data.prepare_sklearn(tmp_path_factory.mktemp("sklearn"))


@pytest.fixture(scope="session")
def small_digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`--data` for a fixture script: 1,207 images to train on and 301 to test, MNIST's where they are at hand."""
    whole = fixture_data.prepare_real(tmp_path_factory.mktemp("digits"))
    target = tmp_path_factory.mktemp("small")
    subset: Path = fixture_data.digits.subset(whole, target, SMALL_TRAIN, SMALL_TEST)
    return subset
