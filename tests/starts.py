"""Scripts that tests of `setup` start: by themselves, or forked from a process that has imported torch already."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forks

Done = subprocess.CompletedProcess[str]

ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if k not in "RANK WORLD_SIZE OMP_NUM_THREADS CUDA_VISIBLE_DEVICES".split()},
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    "DP2DDP_DEVICE": "cpu",
    "PYTHONUNBUFFERED": "1",  # so that what children print stands where they print it
    "PYTHONHASHSEED": "0",  # without it a process that may become rank 0 starts anew, which a test of that asks for
}
START = "import os, sys, time\nimport torch\nimport dp2ddp_runtime as ddp\n"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
_WITHIN = 120.0  # seconds


def write(folder: Path, body: str, name: str = "train.py") -> Path:
    """A script that begins with `START`."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(START + textwrap.dedent(body))
    return path


def environment(nproc: int | None, more: Mapping[str, str] | None) -> dict[str, str]:
    return {**ENVIRONMENT, **({"DP2DDP_NPROC": str(nproc)} if nproc else {}), **(more or {})}


def start(*command: object, nproc: int | None = 2, env: Mapping[str, str] | None = None, **options: Any) -> Done:
    """Run Python with `command`, on `nproc` ranks."""
    line = [sys.executable, *map(str, command)]
    variables = environment(nproc, env)
    options = {"timeout": _WITHIN, **options}
    return subprocess.run(line, env=variables, capture_output=True, text=True, **options)


class Started:
    """A forked process and where its output goes."""

    def __init__(self, process: forks.Fork, folder: Path) -> None:
        self.process = process
        self._folder = folder

    def wait_for(self, *files: Path) -> None:
        """Wait until it has made these files. Raises AssertionError if it ends before that, or takes a minute."""
        self._wait_until(lambda: all(file.exists() for file in files))

    def wait_for_output(self, text: str) -> None:
        """Wait until `text` stands in its standard output. Raises AssertionError as `wait_for`."""
        self._wait_until(lambda: text in self._written()[0])

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_so():
            assert self.process.poll() is None, self.wait().stderr
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def wait(self, timeout: float = _WITHIN) -> Done:
        """Wait until it has ended; TimeoutExpired if it takes more than `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                print(*self._written(), sep="\n")  # pytest shows it with the error
                raise subprocess.TimeoutExpired(self.process.args, timeout)
            time.sleep(0.02)
        out, err = self._written()
        return Done(self.process.args, self.process.wait(), out, err)

    def _written(self) -> tuple[str, str]:
        return (self._folder / "stdout").read_text(), (self._folder / "stderr").read_text()


class Warm:
    """Starts single processes, and those that start the ranks, warm: forked. A launcher ends without its interpreter.

    Ranks don't, so they are started anew, unless a test says that it needs no such end: `forked=True`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started = 0
        # Not `torch.distributed.run`: a module that is run must not have been imported.
        modules = ["torch", "torch._dynamo", "torch.distributed", "torch.distributed.launcher.api", "forks"]
        self._parent = forks.Parent(modules, ENVIRONMENT)

    def close(self) -> None:
        self._parent.close()

    @contextmanager
    def started(
        self,
        *command: object,
        nproc: int | None = 2,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        forked: bool = False,
        ranks: int | None = None,
        network: str | None = None,
    ) -> Iterator[Started]:
        """As `start`, while it runs; it is ended at the end of the block.

        Args:
            forked: its ranks, too.
            ranks: how many these are, where neither `nproc` nor the command says it.
            network: the network namespace in which it runs.
        """
        self._started += 1
        folder = self._folder / str(self._started)
        folder.mkdir()
        place: dict[str, Any] = {"variables": environment(nproc, env), "folder": os.fspath(cwd or Path.cwd())}
        place["variables"]["STDOUT"] = str(folder / "stdout")
        with open(os.devnull) as nothing, open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
            given = [nothing.fileno() if stdin is None else stdin, out.fileno() if stdout is None else stdout]
            line = list(map(str, command))
            called = ["forks:launch", ranks or nproc or _ranks_of(line)] if forked else ["forks:run"]
            place.update(streams=[*given, err.fileno()], network=network)
            process = self._parent.fork(*called, *line, **place)
        process.args = line
        try:
            yield Started(process, folder)
        finally:
            process.kill()

    def start(self, *command: object, **options: Any) -> Done:
        """As `start`."""
        with self.started(*command, **options) as started:
            return started.wait()


def _ranks_of(command: Sequence[str]) -> int:
    """How many ranks torchrun will start, those included that it starts again."""
    options = dict(part.split("=", 1) for part in command if part.startswith("--") and "=" in part)
    return int(options["--nproc-per-node"]) * (1 + int(options.get("--max-restarts", 0)))
