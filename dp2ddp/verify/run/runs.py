"""Start originals and conversions under `record`, each in its own scratch folder, and read what they left.

A run's folder: `work/` is the script's working directory, `script/` the script's own where that is elsewhere,
`rank<r>/` holds each process's recording with its `stdout.txt` and `stderr.txt`, `run.json` the exit codes and seconds.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dp2ddp import RUNTIME_SOURCE
from dp2ddp.verify.run import recording, scratch
from dp2ddp.verify.run.recording import Recording

SCRIPT = "script"  # the folder in a run's that stands for the script's, where that isn't the working directory
GRACE = 20.0  # seconds that the other ranks have after the first one failed
PLACE = "DP2DDP_PLACE"  # `dp2ddp_runtime.world.PLACE`, which can't be imported without torch
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Options:
    """How both sides of a comparison run.

    Args:
        replicas: N: DataParallel's replicas in the original, ranks of the converted script.
        steps: end both after this many optimizer steps; None: run to the end.
        float64: make float64 torch's default dtype.
        cuda: use the machine's CUDA devices; else the CPU stands in for max(N, 2) of them.
        seed: seeds the generators before the scripts start, for those that don't.
        shift: is added to every seed that the scripts set.
        threads: CPU threads a process.
        synthetic: torchvision's data sets get so many made-up training samples; None: they are the real ones.
        moved: folders of the user's, and what stands for them in this run: `PYTHONPATH` leads to these.
        timeout: seconds after which a run is ended.
    """

    replicas: int = 2
    steps: int | None = None
    float64: bool = False
    cuda: bool = False
    seed: int = 0
    shift: int = 0
    threads: int = 1
    synthetic: int | None = None
    moved: tuple[tuple[Path, Path], ...] = ()
    timeout: float = 600.0


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

    def hide(self, text: str) -> str:
        """`text` without the path of this run's folder, which the script doesn't have from the user."""
        return text.replace(str(self.folder.resolve()), "")

    def recordings(self) -> list[Recording]:
        """Every process's recording, by rank. Raises `FileNotFoundError` where a process didn't get that far."""
        return [recording.read(self.folder / f"rank{rank}") for rank in range(len(self.exit_codes))]

    def losses(self) -> list[float]:
        """What `backward` was called on, over all ranks."""
        return recording.global_losses(self.recordings())

    def files(self) -> dict[str, Path]:
        """Every file that the script wrote in its working directory or beside itself, by path relative to `work`."""
        tops = (self.work, self.folder / SCRIPT)
        found = sorted(path for top in tops for path in top.rglob("*") if path.is_file() and scratch.is_output(path))
        return {Path(os.path.relpath(path, self.work)).as_posix(): path for path in found}


def read(folder: Path) -> Run:
    """The finished run in `folder`. Raises `FileNotFoundError` if there is none."""
    saved = json.loads((folder / "run.json").read_text())
    return Run(folder, tuple(saved["exit_codes"]), saved["seconds"])


class Running:
    """A started run; `wait` for it. As a context manager it ends the processes that are still there."""

    def __init__(self, folder: Path, processes: Sequence[subprocess.Popen[bytes]], timeout: float) -> None:
        self.folder = folder
        self._processes = processes
        self._started = time.monotonic()
        self._timeout = timeout

    def wait(self) -> Run:
        """Wait until every process has ended, and give back the run.

        When a rank fails the others have `GRACE` seconds; after `timeout` seconds all are ended.

        Raises:
            subprocess.TimeoutExpired: the run took longer than its timeout.
        """
        deadline = self._started + self._timeout
        while any(code is None for code in self._poll()):
            if any(self._poll_failed()):
                deadline = min(deadline, time.monotonic() + GRACE)
            if time.monotonic() > deadline:
                failed = any(self._poll_failed())
                self.kill()
                if not failed:
                    raise subprocess.TimeoutExpired(str(self._processes[0].args), self._timeout)
            time.sleep(0.02)
        run = Run(self.folder, tuple(code or 0 for code in self._poll()), time.monotonic() - self._started)
        saved = {"exit_codes": run.exit_codes, "seconds": run.seconds}
        (self.folder / "run.json").write_text(json.dumps(saved))
        return run

    def kill(self) -> None:
        """End every process that is still there."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()

    def _poll(self) -> list[int | None]:
        return [process.poll() for process in self._processes]

    def _poll_failed(self) -> list[int]:
        return [code for code in self._poll() if code]

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()


def start_original(script: Path, arguments: Sequence[str], folder: Path, options: Options) -> Running:
    """Start a DataParallel script with `options.replicas` replicas; it records into `folder`.

    On the CPU the replicas are emulated. `arguments` are the script's own; it runs in `folder/work`, which may be
    filled beforehand (`scratch.fill`), the script being in it.
    """
    recorder = _recorder(folder, options)
    if not options.cuda:
        recorder += ["--emulate", str(options.replicas)]
    return _start([*recorder, "--", os.path.abspath(script), *arguments], folder, options, [{}])


def start_converted(script: Path, arguments: Sequence[str], folder: Path, options: Options) -> Running:
    """Start a converted script on `options.replicas` ranks of this machine; each records into `folder`.

    The ranks are started as torchrun starts them, without its agent, which takes as long to start as the script; and
    a script that can also set up DDP itself must not see torchrun's variables.
    """
    command = [*_recorder(folder, options), "--", os.path.abspath(script), *arguments]
    device = {} if options.cuda else {"DP2DDP_DEVICE": "cpu"}
    if options.replicas == 1:
        return _start(command, folder, options, [{**device, "DP2DDP_NPROC": "1"}])
    common = {**device, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    size = str(options.replicas)
    places = [
        {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        for rank in map(str, range(options.replicas))
    ]
    ranks = [{**common, PLACE: json.dumps(place)} for place in places]
    return _start(command, folder, options, ranks)


def _recorder(folder: Path, options: Options) -> list[str]:
    command = [sys.executable, "-m", "dp2ddp.verify.run.record", "--out", str(folder.resolve())]
    command += ["--seed", str(options.seed), "--shift", str(options.shift)]
    if options.steps is not None:
        command += ["--steps", str(options.steps)]
    if options.float64:
        command.append("--float64")
    if options.synthetic is not None:
        # One folder for both sides, so that the paths of image files are the same.
        place = folder.resolve().parent / f"synthetic{options.synthetic}"
        command += ["--synthetic", str(options.synthetic), "--synthetic-folder", str(place)]
    if not options.cuda:
        command += ["--cpu", str(max(options.replicas, 2))]
    return command


def _start(command: Sequence[str], folder: Path, options: Options, processes: Sequence[Mapping[str, str]]) -> Running:
    """Start `command` once for each set of environment variables in `processes`."""
    work = folder / "work"
    work.mkdir(parents=True, exist_ok=True)
    inherited = {key: value for key, value in os.environ.items() if key not in _RANK_VARIABLES}
    shared = {**inherited, "PYTHONPATH": _python_path(options.moved), "OMP_NUM_THREADS": str(options.threads)}
    shared["PYTHONHASHSEED"] = "0"  # so that the order of a set is the same on both sides
    if options.cuda:  # nn.DataParallel takes all the devices it sees
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(options.replicas)))
        shared["CUDA_VISIBLE_DEVICES"] = ",".join(visible.split(",")[: options.replicas])
    started: list[subprocess.Popen[bytes]] = []
    for rank, variables in enumerate(processes):
        here = folder / f"rank{rank}"
        here.mkdir(exist_ok=True)
        with ExitStack() as files:
            out, err = (files.enter_context((here / f"{name}.txt").open("wb")) for name in ("stdout", "stderr"))
            started.append(
                subprocess.Popen(
                    command, cwd=work, env={**shared, **variables}, stdin=subprocess.DEVNULL, stdout=out, stderr=err
                )
            )
    return Running(folder, started, options.timeout)


def _python_path(moved: Sequence[tuple[Path, Path]] = ()) -> str:
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
