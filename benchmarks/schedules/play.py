"""One schedule: a converted script on late ranks, and whether it does what the original does."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import random
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from dp2ddp_runtime.world import world

from .delays import Delays

SCRIPTS = Path(__file__).with_name("scripts")
_PATIENCE = 90.0  # seconds for a schedule
_CLEARED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class Schedule:
    """What decides how a run goes.

    Args:
        late: the rank that sleeps ten times as often; -1 for none.
    """

    script: str
    number: int
    seed: int
    ranks: int
    late: int
    often: float

    @classmethod
    def drawn(cls, scripts: Sequence[str], seed: int, number: int) -> Schedule:
        """The schedule of a number."""
        chance = random.Random(f"{seed}/{number}")
        ranks = chance.choice([2, 2, 3])
        script = scripts[number % len(scripts)]
        return cls(script, number, seed, ranks, chance.randrange(-1, ranks), chance.choice([0.02, 0.1, 0.4]))


def prepare(folder: Path, scripts: Collection[str]) -> None:
    """Convert all scripts, and run the originals of some, below `folder`.

    Raises:
        subprocess.CalledProcessError: the command refuses, or an original fails.
    """
    converted = folder / "converted"
    command = [sys.executable, "-m", "dp2ddp", "convert", os.fspath(SCRIPTS), "-o", os.fspath(converted), "-q"]
    subprocess.run(command, check=True)
    for script in (SCRIPTS / name for name in scripts):
        at = folder / "originals" / script.stem
        at.mkdir(parents=True)
        child = forked(script, at, at, {})
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            raise subprocess.CalledProcessError(1, script.name, stderr=(at / "stderr").read_text())


def play(schedule: Schedule, folder: Path, plant: str | None = None) -> list[str]:
    """Run a schedule; returns what was wrong.

    Args:
        folder: that `prepare` was given.
        plant: one of `PLANTS`.
    """
    original, own = folder / "originals" / Path(schedule.script).stem, folder / str(schedule.number)
    machine, outputs = own / "machine", [own / f"rank{rank}" for rank in range(schedule.ranks)]
    for each in (machine, *outputs):
        each.mkdir(parents=True)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    children: dict[int, int] = {}
    for rank, output in enumerate(outputs):
        places = {"RANK": rank, "WORLD_SIZE": schedule.ranks, "MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1"}
        places |= {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": schedule.ranks}
        is_late = rank == schedule.late
        often = min(0.8, schedule.often * (10 if is_late else 1))
        delays = Delays(f"{schedule.seed}/{schedule.number}/{rank}", often, 2.0 if is_late else 0.6)

        def before(delays: Delays = delays) -> None:
            if plant:
                PLANTS[plant]()
            delays.install()

        variables = {name: str(value) for name, value in places.items()}
        children[forked(folder / "converted" / schedule.script, machine, output, variables, before)] = rank
    wrong = _wait(children)
    for rank, output in enumerate(outputs):
        if error := (output / "stderr").read_text().strip():
            wrong.append(f"rank {rank} says: {error[-1500:]}")
    printed, wanted = ((each / "stdout").read_text() for each in (outputs[0], original))
    if printed != wanted:
        wrong.append(f"printed {printed!r} instead of {wanted!r}")
    wrong += differences(_files(original), _files(machine))
    shutil.rmtree(own)
    return wrong


def differences(wanted: Mapping[str, Path], found: Mapping[str, Path]) -> list[str]:
    """How files differ from the original's."""
    wrong = [f"{name} is one too many" for name in found.keys() - wanted.keys()]
    wrong += [f"{name} is missing" for name in wanted.keys() - found.keys()]
    for name in found.keys() & wanted.keys():
        with suppress(IsADirectoryError):
            ours, theirs = found[name].read_bytes(), wanted[name].read_bytes()
            if ours != theirs and not (name.endswith(".pt") and _are_close(found[name], wanted[name])):
                wrong.append(f"{name} has {ours[:200]!r} instead of {theirs[:200]!r}")
    return wrong


def _are_close(one: Path, other: Path) -> bool:
    """Whether two saved states are the same but for the order in which gradients are summed."""
    with suppress(RuntimeError, EOFError):  # half a file
        ours, theirs = torch.load(one), torch.load(other)
        return ours.keys() == theirs.keys() and all(
            torch.allclose(torch.as_tensor(ours[name]), torch.as_tensor(theirs[name]), rtol=1e-9) for name in ours
        )
    return False


def _files(folder: Path) -> dict[str, Path]:
    own = ("stdout", "stderr")
    return {os.fspath(path.relative_to(folder)): path for path in folder.rglob("*") if path.name not in own}


def forked(
    script: Path,
    folder: Path,
    output: Path,
    variables: Mapping[str, str],
    before: Callable[[], None] = lambda: None,
) -> int:
    """A process that runs a script in a folder, as a copy of this one, which has imported torch."""
    child = os.fork()
    if not child:
        _run(script, folder, output, variables, before)
    return child


def _run(
    script: Path, folder: Path, output: Path, variables: Mapping[str, str], before: Callable[[], None]
) -> NoReturn:
    """Run a script as Python does, to its end."""
    os.setsid()
    atexit._clear()  # what the process has registered that this one is a copy of
    process: Any = multiprocessing.process
    process._parent_process = None  # as in a script: it is nobody's worker
    for name in _CLEARED:
        os.environ.pop(name, None)
    os.environ.update(variables, DP2DDP_DEVICE="cpu", OMP_NUM_THREADS="1", PYTHONHASHSEED="0")
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(output / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    torch.set_num_threads(1)
    sys.argv = [os.fspath(script)]
    sys.path.insert(0, os.fspath(script.parent))
    world.pid = os.getpid()
    os.chdir(folder)
    before()
    code = 0
    try:
        runpy.run_path(os.fspath(script), run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _wait(children: Mapping[int, int]) -> list[str]:
    """Wait for the ranks; what hangs is ended. Returns what was wrong."""
    left, end, wrong = dict(children), time.monotonic() + _PATIENCE, []
    while left:
        for child in list(left):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid and (code := os.waitstatus_to_exitcode(status)):
                wrong.append(f"rank {left[child]} ended with {code}")
                end = min(end, time.monotonic() + 20)
            if pid:
                del left[child]
        if left and time.monotonic() > end:
            wrong.append(f"rank {sorted(left.values())} hung")
            for child in left:
                with suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
            break
        time.sleep(0.005)
    return wrong


def _no_turn() -> None:
    from dp2ddp_runtime import disk  # the ranks' own copy

    disk.Disk._let_come = lambda self, *args: None  # type: ignore[method-assign]


def _no_wait() -> None:
    from dp2ddp_runtime import disk

    disk.Disk.wait_for_changes = lambda self, *args: None  # type: ignore[method-assign]


#: Mistakes that can be planted into each rank, to see that they are found.
PLANTS: dict[str, Callable[[], None]] = {"removes at once": _no_turn, "reads at once": _no_wait}
