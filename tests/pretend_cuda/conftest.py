"""Tests of the pretend CUDA need a CUDA build of torch and g++."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import pytest
import torch

from dp2ddp.pretend_cuda import build

sys.path[:0] = [str(Path(__file__).parent)]


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """The native half, which takes a minute the first time."""
    if torch.version.cuda is None or shutil.which("g++") is None:
        pytest.skip("no CUDA build of torch, or no g++")
    build.load()


@pytest.fixture
def unused_port() -> str:
    """A port on which nobody listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])
