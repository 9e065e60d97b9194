"""Whatever ends `dp2ddp verify`, no process of its and no temporary folder stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tiny

from dp2ddp.verify.start import cleanup, client

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

#: A script that goes on and on, with a worker of a loader and a child in a session of its own.
LONG = tiny.ORIGINAL.replace("range(3)", "range(10**9)").replace(".step()\n", ".step()\n        time.sleep(0.05)\n")
LONG = LONG.replace("shuffle=True", "shuffle=True, num_workers=1, persistent_workers=True")
LONG = "import subprocess\nsubprocess.Popen(['sleep', '3600'], start_new_session=True)\n" + LONG
_SOON = 30.0  # seconds; far less on a machine that does nothing else


@pytest.fixture
def work() -> Iterator[Path]:
    """A folder with a short name: a loader's worker makes a socket below TMPDIR, whose path may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ended") as name:
        tiny.lay_out(Path(name), LONG)
        (Path(name) / "tmp").mkdir()
        yield Path(name)


@pytest.fixture
def start(work: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command in a group of its own, with its own folder for temporary files."""
    started: list[subprocess.Popen[str]] = []

    def start(*before: str) -> subprocess.Popen[str]:
        command = [*before, sys.executable, "-m", "dp2ddp", "verify", "train.py", "--quiet"]
        env = {**os.environ, "TMPDIR": str(work / "tmp"), "PYTHONPATH": client.python_path()}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": heed_signals}
        started.append(subprocess.Popen(command, cwd=work, env=env, start_new_session=True, **options))  # type: ignore[call-overload]
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def heed_signals() -> None:
    """Those that `nohup` and a shell's background job ignore, should this be one."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


def processes(work: Path) -> dict[int, str]:
    """The processes that use the folder for temporary files, by their ids: their command lines."""
    found = {}
    for each in Path("/proc").glob("[0-9]*"):
        try:
            environment = (each / "environ").read_bytes().split(b"\0")
            if f"TMPDIR={work / 'tmp'}".encode() in environment:
                found[int(each.name)] = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # ended meanwhile
            continue
    return found


def until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def train(work: Path) -> None:
    """Wait until all three processes train."""
    events = "dp2ddp-verify-*/1/*/rank*/events.jsonl"
    made = lambda: [path.read_text().count('"kind": "step"') for path in (work / "tmp").glob(events)]  # noqa: E731
    assert until(lambda: len(made()) == 3 and min(made()) > 0, 200)


def nothing_stays(work: Path) -> None:
    assert until(lambda: not processes(work), _SOON), processes(work)
    assert until(lambda: not list((work / "tmp").glob(f"{cleanup.PREFIX}*")), _SOON), list((work / "tmp").iterdir())


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 128 + signal.SIGINT), (signal.SIGKILL, -signal.SIGKILL)],  # SIGTERM ends it as SIGKILL does
)
def test_nothing_stays_after_a_signal(
    start: Callable[..., subprocess.Popen[str]], work: Path, number: int, code: int
) -> None:
    running = start()
    train(work)
    assert len(processes(work)) >= 8  # the command, its fork server, three runs, with workers and children
    os.kill(running.pid, number)
    output = running.communicate(timeout=60)
    assert (running.returncode, output[0]) == (code, ""), output
    assert output[1] == ("dp2ddp: interrupted\n" if number == signal.SIGINT else "")
    nothing_stays(work)


def test_runs_end_with_their_fork_server(start: Callable[..., subprocess.Popen[str]], work: Path) -> None:
    running = start()
    train(work)
    (server,) = [
        pid
        for pid, command in processes(work).items()
        if "start.fork_server" in command and f"\nPPid:\t{running.pid}\n" in Path(f"/proc/{pid}/status").read_text()
    ]
    os.kill(server, signal.SIGKILL)
    output = running.communicate(timeout=60)
    assert running.returncode == 2
    why = "the process that starts the scripts was killed; is the machine out of memory?"
    assert output == ("", f"dp2ddp: verify: {why}\n")
    orphans = lambda: [each for each in processes(work).values() if "sleep" not in each]  # noqa: E731
    assert until(lambda: not orphans(), _SOON), processes(work)
    for pid in processes(work):
        os.kill(pid, signal.SIGKILL)
