"""Have a fork server start the runs: this process's end of `fork_server`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dp2ddp import RUNTIME_SOURCE

STUCK_AFTER = 20  # seconds that a rank waits for the others until the runtime tells where they are
_ENDS_WITHIN = 10.0  # seconds


class ServerEndedError(RuntimeError):
    """The fork server was killed, and the runs with it."""


class ForkServer:
    """Starts at once, importing what every run does. As a context manager it ends with the context.

    Args:
        folder: it removes that when this process has ended, or the context.
        modules: what all runs import besides; what isn't there is left out.
    """

    def __init__(self, folder: Path | None = None, modules: Sequence[str] = ()) -> None:
        command = [sys.executable, "-m", "dp2ddp.verify.start.fork_server", str(folder or ""), *modules]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
        # Away from the user's files: a `random.py` beside the script is the script's business, not the server's.
        elsewhere = str(folder or Path(sys.prefix))
        self._process = subprocess.Popen(command, cwd=elsewhere, env=environment(), start_new_session=True, **pipes)
        self._orders: Any = self._process.stdin
        self._answers: Any = self._process.stdout

    def start(
        self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], streams: Path, fork: bool = True
    ) -> int:
        """Start `run_script` with `arguments`; its output goes to `stdout.txt` and `stderr.txt` in `streams`.

        Returns the process's id. It is the server's fork, where that may be, or a Python of its own.
        """
        files = [str(streams / "stdout.txt"), str(streams / "stderr.txt")]
        return int(self._ask({"start": [list(arguments), str(cwd), dict(env), *files, fork]}))

    def poll(self, pid: int) -> int | None:
        """The exit code of a process that was started (-n: signal n ended it); None as long as it runs.

        To be asked for until it is known, and no more: another process may have the id from then on.
        """
        code: int | None = self._ask({"poll": pid})
        return code

    def _ask(self, order: Mapping[str, Any]) -> Any:
        """Give an order, and wait for the answer."""
        with suppress(BrokenPipeError):
            self._orders.write(json.dumps(order) + "\n")
            self._orders.flush()
        answer = self._answers.readline()
        if not answer:
            raise ServerEndedError
        return json.loads(answer)

    def close(self) -> None:
        """End all that was started, and the server; kill it if that takes long, as in the middle of an import."""
        with suppress(BrokenPipeError):
            self._orders.close()
        try:
            self._process.wait(_ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self._process.kill()  # what it has started ends with it
            self._process.wait()
        self._answers.close()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *told: object) -> None:
        self.close()


def environment(moved: Sequence[tuple[Path, Path]] = ()) -> dict[str, str]:
    """The environment of a run, but for what tells it its place; `moved` as of `python_path`."""
    found = {**os.environ, "PYTHONPATH": python_path(moved), "OMP_NUM_THREADS": "1"}
    found["PYTHONHASHSEED"] = "0"  # so that the order of a set is the same on both sides
    found.setdefault("SOURCE_DATE_EPOCH", "0")  # so is the date in a PDF
    found.setdefault("DP2DDP_STUCK_AFTER", str(STUCK_AFTER))
    return found


def python_path(moved: Sequence[tuple[Path, Path]] = ()) -> str:
    """`PYTHONPATH` under which the processes find this package and its version of the runtime, wherever they run.

    The user's own entries follow, those in `moved` folders led to what stands for them: there lie the side's files.
    """
    package = Path(__file__).resolve().parents[2]
    found = [str(RUNTIME_SOURCE.parent)]
    if package not in RUNTIME_SOURCE.parents:  # a checkout; where it is installed, the same interpreter finds it
        found.append(str(package.parent))
    for entry in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        path = Path(entry).resolve()
        led = (str(there / path.relative_to(here)) for here, there in moved if here in (path, *path.parents))
        found.append(next(led, entry))
    return os.pathsep.join(found)
