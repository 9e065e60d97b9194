"""Start originals and conversions under `run_script`, each in its own scratch folder, and read what they left.

A run's folder: `work/` is the script's working directory, `script/` the script's own where that is elsewhere,
`rank<r>/` holds each process's recording with its `stdout.txt` and `stderr.txt`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dp2ddp.verify.run import recording, scratch
from dp2ddp.verify.run.recording import Recording
from dp2ddp.verify.run.run_options import Options as Options
from dp2ddp.verify.run.run_options import Task
from dp2ddp.verify.start import cleanup, client
from dp2ddp.verify.start.client import ForkServer

SCRIPT = "script"  # the folder in a run's that stands for the script's, where that isn't the working directory
_LOOK_EVERY = 0.02  # seconds
GRACE = 20.0  # seconds that the other ranks have after the first one failed
LAUNCHED = "DP2DDP_LAUNCHED"  # `dp2ddp_runtime.birth.LAUNCHED`, which can't be imported without torch
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

Moved = Sequence[tuple[Path, Path]]  # folders of the user's, and what stands for each in a run


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, the exit code of each process, wall-clock seconds from start to end."""

    folder: Path
    exit_codes: tuple[int, ...]
    seconds: float

    @property
    def exit_code(self) -> int:
        """The first exit code that is not 0, or 0."""
        return next((code for code in self.exit_codes if code), 0)

    @property
    def work(self) -> Path:
        """The script's working directory, with the files that it wrote."""
        return self.folder / "work"

    @property
    def stdout(self) -> str:
        """What rank 0 printed."""
        return self.output(0, "stdout")

    @property
    def stderr(self) -> str:
        """What all processes wrote to standard error."""
        return "".join(self.output(rank, "stderr") for rank in range(len(self.exit_codes)))

    def output(self, rank: int, stream: str) -> str:
        """What rank `rank` wrote to `stream` ("stdout" or "stderr")."""
        return (self.folder / f"rank{rank}" / f"{stream}.txt").read_text(errors="replace")

    def recordings(self) -> list[Recording]:
        """Each rank's recording. Raises `FileNotFoundError` where a process didn't get that far.

        Ranks that no wrap has asked for (`device_ids` of two devices, three ranks) have ended in `setup`, with nothing.
        """
        found = [recording.read(self.folder / f"rank{rank}") for rank in range(len(self.exit_codes))]
        return [each for rank, each in enumerate(found) if not rank or each.steps or each.batches or each.starts]

    def losses(self) -> list[float]:
        """What `backward` was called on, over all ranks."""
        return recording.global_losses(self.recordings())

    def files(self) -> dict[str, Path]:
        """Every file that the script wrote in its working directory or beside itself, by path relative to `work`."""
        tops = (self.work, self.folder / SCRIPT)
        found = sorted(path for top in tops for path in top.rglob("*") if path.is_file() and scratch.is_output(path))
        return {Path(os.path.relpath(path, self.work)).as_posix(): path for path in found}


class Running:
    """A started run; `wait` for it, or `poll`. As a context manager it ends the processes that are still there."""

    def __init__(self, folder: Path, server: ForkServer, processes: Sequence[int], timeout: float) -> None:
        self.folder = folder
        self._server = server
        self._codes: dict[int, int | None] = dict.fromkeys(processes)
        self._started = time.monotonic()
        self._timeout = timeout
        self._deadline = self._started + timeout

    def _poll(self) -> list[int]:
        """The processes that are still there."""
        left = [pid for pid, code in self._codes.items() if code is None]
        self._codes.update((pid, self._server.poll(pid)) for pid in left)
        return [pid for pid in left if self._codes[pid] is None]

    def poll(self) -> Run | None:
        """The run if every process has ended, else None.

        When a rank fails the others have `GRACE` seconds. After `timeout` seconds all are ended, and
        `subprocess.TimeoutExpired` is raised, whose `cmd` is the folder's name.
        """
        if self._poll():
            failed = any(self._codes.values())
            if failed:
                self._deadline = min(self._deadline, time.monotonic() + GRACE)
            if time.monotonic() > self._deadline:
                self.kill()
                if not failed:
                    raise subprocess.TimeoutExpired(self.folder.name, self._timeout)
            return None
        codes = tuple(code or 0 for code in self._codes.values())
        return Run(self.folder, codes, time.monotonic() - self._started)

    def wait(self) -> Run:
        """Wait until every process has ended, and give back the run. Raises as `poll` does."""
        return together({"": self})[""]

    def kill(self) -> None:
        """End every process that is still there, and its children that are in its group."""
        for pid in self._poll():
            cleanup.end_group(pid)
        while self._poll():
            time.sleep(_LOOK_EVERY)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, kind: type[BaseException] | None, *told: object) -> None:
        # An interrupt may have come between an order and its answer: then the server is asked nothing more, and ended.
        if kind is None or issubclass(kind, Exception):
            self.kill()


def together(
    running: Mapping[str, Running], look: Callable[[Mapping[str, Run]], object] = lambda done: None
) -> dict[str, Run]:
    """Wait until several runs have ended. `look` is called every so often with those that have.

    Raises as `poll` does.
    """
    done: dict[str, Run] = {}
    while True:
        for name in running.keys() - done.keys():
            run = running[name].poll()
            if run is not None:
                done[name] = run
        look(done)
        if len(done) == len(running):
            return done
        time.sleep(_LOOK_EVERY)


def start(
    script: Path,
    arguments: Sequence[str],
    folder: Path,
    options: Options,
    server: ForkServer,
    moved: Moved = (),
    *,
    original: bool = False,
) -> Running:
    """Start a script under `run_script`, once for each rank; each records into `folder`.

    The original is one process with `options.replicas` replicas, which are emulated on the CPU. The ranks of a
    converted script are started as torchrun starts them, without its agent, which takes as long to start as the
    script.

    It runs in `folder/work`, which may be filled beforehand (`scratch.fill`), the script being in it. `moved`: folders
    of the user's, and what stands for each in the run.
    """
    work = folder.resolve() / "work"
    work.mkdir(parents=True, exist_ok=True)
    shared = client.environment(moved)
    for name in _RANK_VARIABLES:
        shared.pop(name, None)
    if options.cuda:  # nn.DataParallel takes all the devices it sees
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(options.replicas)))
        shared["CUDA_VISIBLE_DEVICES"] = ",".join(visible.split(",")[: options.replicas])
        shared.pop("DP2DDP_DEVICE", None)
    started: list[int] = []
    for rank, variables in enumerate([{}] if original else _places(options)):
        here = folder.resolve() / f"rank{rank}"
        here.mkdir(exist_ok=True)
        task = Task(str(folder.resolve()), os.path.abspath(script), arguments, options, original, rank).as_text()
        # CUDA isn't made to be forked.
        started.append(server.start([task], work, {**shared, **variables}, here, fork=not options.cuda))
    return Running(folder, server, started, options.timeout)


def _places(options: Options) -> list[dict[str, str]]:
    """What tells each rank of a converted script its place."""
    common = {} if options.cuda else {"DP2DDP_DEVICE": "cpu"}
    if options.replicas == 1:
        return [{**common, "DP2DDP_NPROC": "1"}]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    size = str(options.replicas)
    ranks = []
    for rank in map(str, range(options.replicas)):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        # A script that can also set up DDP itself must not see torchrun's variables.
        told = place if options.foreign else {LAUNCHED: json.dumps(place)}
        ranks.append({**common, **told})
    return ranks
