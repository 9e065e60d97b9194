"""Tests of the pretend CUDA need a CUDA build of torch and g++."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from dp2ddp.pretend_cuda import PretendCudaUnavailableError, build

sys.path[:0] = [str(Path(__file__).parent)]


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """The native half, which takes a minute the first time."""
    try:
        build.compiled()
    except PretendCudaUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def unused_port() -> str:
    """A port on which nobody listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])
