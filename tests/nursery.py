"""Processes under `record`, forked (see `forks`) instead of started anew."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import IO, Any
from unittest import mock

import forks

from dp2ddp.verify.run import runs

# What recorded scripts import, and `record` itself.
_MODULES = """torch torch._dynamo torch.distributed torch.nn.parallel torchvision.datasets torchvision.transforms
torchvision.utils dp2ddp.verify.run.record""".split()


class Nursery:
    """Stands in for `subprocess.Popen` in `runs`."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": runs._python_path(), "OMP_NUM_THREADS": "1"}
        self._parent = forks.Parent(_MODULES, environment)

    def close(self) -> None:
        self._parent.close()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While this lasts, `runs` forks instead of starting Python anew."""
        names = {"Popen": self._start, "DEVNULL": subprocess.DEVNULL, "TimeoutExpired": subprocess.TimeoutExpired}
        with mock.patch.object(runs, "subprocess", SimpleNamespace(**names)):
            yield

    def _start(
        self,
        command: Sequence[str],
        cwd: str | os.PathLike[str],
        env: Mapping[str, str],
        stdin: Any,
        stdout: IO[bytes],
        stderr: IO[bytes],
    ) -> forks.Fork:
        assert command[1:3] == ["-m", "dp2ddp.verify.run.record"]
        assert stdin == subprocess.DEVNULL
        with open(os.devnull) as nothing:
            streams = [nothing.fileno(), stdout.fileno(), stderr.fileno()]
            place = {"variables": env, "folder": os.fspath(cwd), "streams": streams}
            fork = self._parent.fork("dp2ddp.verify.run.record:main", command[3:], **place)
        fork.args = command
        return fork
