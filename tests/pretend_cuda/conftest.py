"""Tests of the pretend CUDA need a CUDA build of torch and g++."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parent)]

if torch.version.cuda is None or shutil.which("g++") is None:
    pytest.skip("no CUDA build of torch, or no g++", allow_module_level=True)


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """The native half, once: children that run at the same time would each compile it."""
    from dp2ddp.pretend_cuda import build

    if not build._cached().exists():
        build._compile(build._cached())


@pytest.fixture
def unused_port() -> str:
    """A port on which nobody listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])
