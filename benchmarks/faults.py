"""Kills jobs at random moments of training and saving, and looks at what they leave behind.

Each kill takes a job of its own: two ranks that train and save one checkpoint again and again, each with a loader's
worker. One of its processes gets a signal (mostly SIGKILL) at a moment that the seed decides. Then nothing may be left:

- the job ends, with the exit code and the one message that `docs/reliability.md` promises, and all its processes end;
- the checkpoint is whole, bit for bit one that was saved, and not older than the last save that came to its end;
- at most what was being written lies beside it, under a hidden name, and the next save leaves nothing.

Started in earnest, a job spends seconds on importing torch. Here its processes are forks of this one, which has torch:
what follows (ranks, signals, files) is the same. Linux only.

    python benchmarks/faults.py [--kills 1000] [--seed 0] [--json FILE]

Exits with 1 if anything was wrong; each such kill is told, and can be repeated alone (`--seed S --only NUMBER`).
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import json
import os
import random
import re
import runpy
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # as for the ranks of a plain start, and read when torch is imported

import dp2ddp_runtime as ddp
import torch
import torch._dynamo  # the ranks need it, and importing it takes seconds
from dp2ddp_runtime import birth, hangs

_PATIENCE = 60.0  # seconds for a job to begin, and to end
_SUBREAPER = 36  # `PR_SET_CHILD_SUBREAPER`: processes whose parent has died become children of this one

SCRIPT = """
import os, sys
import torch
from torch.utils.data import DataLoader
import dp2ddp_runtime as ddp

ddp.setup(timeout=30)
loader = ddp.shard_loader(DataLoader(torch.arange(400000.0).view(-1, 4), batch_size=8, num_workers=1))
net = ddp.wrap_model(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-9)
batches = iter(loader)
with ddp.own_files(), open(f"pids{ddp.rank()}", "w") as file:
    file.write(f"{os.getpid()} {batches._workers[0].pid}")
for step, batch in enumerate(batches):
    optimizer.zero_grad()
    net(batch).sum().backward()
    optimizer.step()
    if step % 3 == 0:
        ddp.save({"step": step, "state": torch.full((1 << 18,), step)}, "net.pt")
        if ddp.is_main():
            with open("saved", "a") as file:
                file.write(f"{step}\\n")
"""

#: Who gets which signal, how often in all, the exit code that follows, and what is told.
KILLS: list[tuple[str, signal.Signals, int, int, str]] = [
    ("rank 0", signal.SIGKILL, 8, -9, ""),
    ("rank 0", signal.SIGTERM, 1, -15, ""),
    ("rank 0", signal.SIGHUP, 1, -1, ""),
    ("rank 0", signal.SIGINT, 1, 130, "KeyboardInterrupt"),
    ("rank 1", signal.SIGKILL, 4, 137, "dp2ddp: rank 1 was ended by signal 9"),
    ("rank 1", signal.SIGSEGV, 1, 139, "dp2ddp: rank 1 was ended by signal 11"),
    ("worker 0", signal.SIGKILL, 2, 1, "DataLoader worker (pid"),
    ("worker 1", signal.SIGKILL, 2, 1, "dp2ddp: rank 1 of 2 failed"),
]
_TRACED = ("KeyboardInterrupt", "DataLoader worker (pid")


class Spare:
    """A process that waits to become rank 1. It began before rank 0 did anything, so it is as new as one just begun."""

    def __init__(self) -> None:
        self._told, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self._told.close()
            _become_rank(theirs)
        theirs.close()

    def begin(self, command: Sequence[str], cwd: str, env: Mapping[str, str], **streams: Any) -> Forked:
        """In the place of `subprocess.Popen`: what it is told there."""
        with open(os.devnull, "w") as nothing:
            leads: list[Any] = [nothing if streams[name] == subprocess.DEVNULL else streams[name] for name in _STREAMS]
            told = json.dumps([command[-1], cwd, dict(env)]).encode()
            socket.send_fds(self._told, [told], [each if isinstance(each, int) else each.fileno() for each in leads])
        self._told.close()
        return Forked(self.pid)


_STREAMS = ("stdin", "stdout", "stderr")


def _become_rank(channel: socket.socket) -> NoReturn:
    told, streams, *_ = socket.recv_fds(channel, 1 << 20, len(_STREAMS))
    if not told:  # rank 0 has ended without
        os._exit(0)
    script, folder, env = json.loads(told)
    os.setsid()
    for own, leads in enumerate(streams):
        os.dup2(leads, own)
    os.closerange(len(_STREAMS), 4096)
    os.environ.clear()
    os.environ.update(env)
    run(script, folder)


class Forked:
    """A `subprocess.Popen` of a forked rank."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, once there is one."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        """The exit code, when it has ended. TimeoutExpired after `timeout` seconds."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("rank 1", timeout)
            time.sleep(0.01)
        return code


def run(script: str, folder: str) -> NoReturn:
    """Run a script as Python does, to its end."""
    code = 0
    atexit._clear()  # what the process has registered that this one is a copy of
    sys.argv = [script]
    try:
        os.chdir(folder)
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    hangs.end(code)


@dataclass
class Result:
    """What a kill led to: the seconds until all had ended, and what was wrong."""

    number: int
    what: str
    seconds: float = 0.0
    saves: int = 0
    left_temporary: bool = False
    wrong: list[str] = field(default_factory=list)


def kill(seed: int, number: int, folder: Path) -> Result:
    """Start a job, kill one of its processes, and look."""
    chance = random.Random(f"{seed}/{number}")
    who, sent, _, code, told = chance.choices(KILLS, [weight for _, _, weight, _, _ in KILLS])[0]
    for path in [*folder.glob("pids*"), *folder.glob("saved")]:
        path.unlink()
    (folder / "train.py").write_text(SCRIPT)
    job = os.fork()
    if job == 0:
        errors = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(errors, 2)
        os.environ.update(DP2DDP_NPROC="2", DP2DDP_DEVICE="cpu", OMP_NUM_THREADS="1", PYTHONHASHSEED="0")
        vars(birth)["subprocess"] = SimpleNamespace(**{**vars(subprocess), "Popen": Spare().begin})
        run(str(folder / "train.py"), str(folder))
    result = Result(number, f"{who} {sent.name}")
    pids = _begun(folder, job, result)
    if pids is not None:
        time.sleep(chance.uniform(0, 0.6))
        os.kill(pids[who], sent)
        begin = time.monotonic()
        found = _wait_for_all(job, result)
        result.seconds = time.monotonic() - begin
        _check_end(folder, found, code, told, result)
        _check_files(folder, result)
    return result


def _begun(folder: Path, job: int, result: Result) -> dict[str, int] | None:
    """The job's processes, once it has saved."""
    deadline = time.monotonic() + _PATIENCE
    while not (folder / "saved").exists():
        if time.monotonic() > deadline or _ended(job):
            result.wrong.append("the job didn't begin: " + (folder / "stderr").read_text())
            for pid in _running():
                os.kill(pid, signal.SIGKILL)
            return None
        time.sleep(0.01)
    ranks = [[int(pid) for pid in (folder / f"pids{rank}").read_text().split()] for rank in range(2)]
    return {f"{kind} {rank}": pid for rank, both in enumerate(ranks) for kind, pid in zip(("rank", "worker"), both)}


def _ended(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def _wait_for_all(job: int, result: Result) -> int | None:
    """The job's exit code, once all its processes have ended."""
    deadline, code = time.monotonic() + _PATIENCE, None
    with suppress(ChildProcessError):  # none is left: a process has ended when its last thread has
        while time.monotonic() < deadline:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == job:
                code = os.waitstatus_to_exitcode(status)
            if not ended:
                time.sleep(0.02)
    left = list(_running())
    if left:
        result.wrong.append(f"{len(left)} processes were left")
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return code


def _running() -> Iterator[int]:
    """The processes below this one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(entry.name)] = int(parent)
    below = {os.getpid()}
    while True:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        if not more:
            break
        below |= more
    yield from below - {os.getpid()}


#: What Python tells in a worker whose rank was killed while it took a batch over: so in the original.
_TOLD_BY_WORKER = re.compile(
    r"Traceback \(most recent call last\):\n  File \"[^\"]*resource_sharer\.py\".*\n"
    r"(?: .*\n)*\w*(?:Error|Exception).*\n?"
)


def _check_end(folder: Path, found: int | None, code: int, told: str, result: Result) -> None:
    errors = _TOLD_BY_WORKER.sub("", (folder / "stderr").read_text())
    if found != code:
        result.wrong.append(f"exit code {found}, not {code}: {errors}")
    is_traced = "Traceback" in errors and "failed" not in told and told not in _TRACED
    if told not in errors or (not told and errors) or errors.count("dp2ddp: ") > 1 or is_traced:
        result.wrong.append(f"told: {errors!r}")


def _check_files(folder: Path, result: Result) -> None:
    saved = (folder / "saved").read_text().split()
    result.saves = len(saved)
    try:
        found = torch.load(folder / "net.pt")
        if not torch.equal(found["state"], torch.full((1 << 18,), found["step"])):
            result.wrong.append("damaged: other numbers")
        elif found["step"] < int(saved[-1]):
            result.wrong.append(f"lost: step {found['step']}, though {saved[-1]} was saved")
    except Exception as error:  # noqa: BLE001 - whatever it is, the file is damaged
        result.wrong.append(f"damaged: {error}")
    before = set(folder.glob(".*"))
    result.left_temporary = bool(before)
    ddp.save({"step": 0}, folder / "net.pt")
    if left := set(folder.glob(".*")) - before:
        result.wrong.append(f"left: {[path.name for path in left]}")


def main(argv: Sequence[str] | None = None) -> int:
    """Kill, and tell what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of a kill to repeat")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job has ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and `nohup` this
    results = []
    with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):  # which sums up what there is
        for number in range(options.kills) if options.only is None else [options.only]:
            result = kill(options.seed, number, Path(folder))
            results.append(result)
            for text in result.wrong:
                print(f"kill {number} ({result.what}): {text}", flush=True)
    seconds = [result.seconds for result in results]
    counts = Counter(result.what for result in results)
    wrong = Counter(text.partition(":")[0] for result in results for text in result.wrong)
    summary: dict[str, Any] = {
        "kills": len(results),
        "saves": sum(result.saves for result in results),
        "killed in a save": sum(result.left_temporary for result in results),
        "wrong": dict(wrong),
        "median end, seconds": round(statistics.median(seconds), 2),
        "slowest end, seconds": round(max(seconds), 2),
        "by signal": dict(sorted(counts.items())),
        "slowest by signal": {
            what: round(max(r.seconds for r in results if r.what == what), 2) for what in sorted(counts)
        },
    }
    print(json.dumps(summary, indent=2))
    if options.json:
        options.json.write_text(json.dumps(summary, indent=2) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
