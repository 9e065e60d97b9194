"""Tests of the pretend CUDA need a CUDA build of torch and g++."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent)]


@pytest.fixture(autouse=True)
def _pretended(pretended: None) -> None:
    """All of them."""


@pytest.fixture
def unused_port() -> str:
    """A port on which nobody listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])
