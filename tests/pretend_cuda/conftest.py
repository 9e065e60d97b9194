"""Tests of the pretend CUDA need a CUDA build of torch and g++."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _pretended(pretended: None) -> None:
    """All of them."""
