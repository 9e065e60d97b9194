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
_ENDS_WITHIN = 20.0  # seconds
_ENDS_SOON = 5.0


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

    def start(
        self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], streams: Path, fork: bool = True
    ) -> int:
        """Start `run_script` with `arguments`; its output goes to `stdout.txt` and `stderr.txt` in `streams`.

        Returns the process's id.

        Args:
            fork: from the server, where that may be; a Python of its own otherwise.
        """
        files = {"out": str(streams / "stdout.txt"), "err": str(streams / "stderr.txt")}
        order = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env), "fork": fork, **files}
        pid: int = self._ask({"start": order})
        return pid

    def poll(self, pid: int) -> int | None:
        """The exit code of a process that was started (-n: signal n ended it); None as long as it runs.

        To be asked for until it is known, and no more: another process may have the id from then on.
        """
        code: int | None = self._ask({"poll": pid})
        return code

    def _ask(self, order: Mapping[str, Any]) -> Any:
        """Give an order, and wait for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise ServerEndedError
        return json.loads(answer)

    def close(self, within: float = _ENDS_WITHIN) -> None:
        """End all that was started, and the server; kill it if that takes longer than `within` seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *told: object) -> None:
        # In the middle of an import it may hear late that it is to end. What it has started ends with it.
        self.close(_ENDS_WITHIN if kind is None else _ENDS_SOON)


def environment(moved: Sequence[tuple[Path, Path]] = ()) -> dict[str, str]:
    """The environment of a run, but for what tells it its place.

    Args:
        moved: folders of the user's, and what stands for them in the run: `PYTHONPATH` leads to these.
    """
    found = {**os.environ, "PYTHONPATH": python_path(moved), "OMP_NUM_THREADS": "1"}
    found["PYTHONHASHSEED"] = "0"  # so that the order of a set is the same on both sides
    found.setdefault("DP2DDP_STUCK_AFTER", str(STUCK_AFTER))
    return found


def python_path(moved: Sequence[tuple[Path, Path]] = ()) -> str:
    """`PYTHONPATH` under which the processes find this package and its version of the runtime, wherever they run.

    The user's own entries follow, those in `moved` folders led to what stands for them: there lie the side's files.
    """
    package = Path(__file__).resolve().parents[2]
    here = [str(RUNTIME_SOURCE.parent)]
    if package not in RUNTIME_SOURCE.parents:  # a checkout; where it is installed, the same interpreter finds it
        here.append(str(package.parent))
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    return os.pathsep.join([*dict.fromkeys(here), *(_stand_in(entry, moved) for entry in given)])


def _stand_in(folder: str, moved: Sequence[tuple[Path, Path]]) -> str:
    path = Path(folder).resolve()
    for source, target in moved:
        if path == source or source in path.parents:
            return str(target / path.relative_to(source))
    return folder
