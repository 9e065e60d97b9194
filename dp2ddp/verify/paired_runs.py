"""Run the original and the converted script side by side, and compare what they did."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from dp2ddp.command import progress
from dp2ddp.verify import failures
from dp2ddp.verify.compare.comparison import Comparison, compare
from dp2ddp.verify.run import runs, scratch
from dp2ddp.verify.run.run_options import Options, Request
from dp2ddp.verify.run.runs import Run, Running, together
from dp2ddp.verify.run.side_by_side import SideBySide
from dp2ddp.verify.start.client import ForkServer
from dp2ddp.verify.verdict import CouldNotRun, Failure

_STEP = re.compile(rb'("kind": "step", )?"step": (\d+)')  # how many were made before
_TAIL = 1 << 16  # bytes
_PATIENCE = 10.0  # seconds in which the original may fail, too


class PairedRuns:
    """Runs both sides, any number of times.

    Args:
        request: the script and its arguments.
        folder: where the runs are.
        server: what starts them.
        sides: the files of each side.
    """

    def __init__(self, request: Request, folder: Path, server: ForkServer, sides: SideBySide) -> None:
        self._request = request
        self._folder = folder.resolve()
        self._server = server
        self._sides = sides
        self._runs = 0

    def by_own_names(self, text: str) -> str:
        """What the converted script says, with its lines by its files' own names."""
        return self._sides.by_own_names(text)

    def compared(self, options: Options, second: str = "converted") -> Comparison:
        """Run both, at the same time unless they share GPUs, and compare.

        Args:
            second: what runs beside the original: the "converted" script, or the original "again".

        Raises:
            CouldNotRun: a side failed, or made no step.
        """
        self._runs += 1
        folder = self._folder / str(self._runs)
        places = {side: folder / side for side in ("original", second)}
        one, other = self._run(places, options)
        progress.doing("comparing")
        converted = second == "converted"
        try:
            comparison = compare(
                one,
                other,
                foreign=options.foreign and converted,
                one_gpu=options.one_gpu and converted,
                diverged=self.by_own_names(failures.divergence(other)),
            )
        except FileNotFoundError as missing:
            raise CouldNotRun(Failure(second, f"nothing was recorded ({missing})", other.stderr)) from missing
        if one.exit_code and not comparison.recordings[0].steps:  # wrong arguments, for one: nothing was compared
            reason = f"exit code {one.exit_code} before the first optimizer step"
            raise CouldNotRun(Failure("original", reason, one.stderr))
        return comparison

    def _run(self, places: Mapping[str, Path], options: Options) -> Sequence[Run]:
        done: dict[str, Run] = {}
        failed: list[float] = []

        def look(ended: Mapping[str, Run]) -> None:
            progress.doing("training: " + ", ".join(f"{side} at step {_made(place)}" for side, place in places.items()))
            done.update(ended)
            found = [each for side in places if side in done and (each := failures.failure(side, done, self._sides))]
            if found:  # of what fails on both sides, the original is told of
                failed.append(time.monotonic())
                if "original" in done or failed[-1] - failed[0] > _PATIENCE:
                    raise CouldNotRun(found[0])

        with ExitStack() as running:
            started: dict[str, Running] = {}
            try:
                for side, place in places.items():
                    started[side] = running.enter_context(self._start(side, place, options))
                    if options.cuda:
                        together({side: started[side]}, lambda ended: look({**done, **ended}))
                together({side: each for side, each in started.items() if side not in done}, look)
            except subprocess.TimeoutExpired as late:
                raise CouldNotRun(failures.timed_out(str(late.cmd), late.timeout, places, self._sides)) from late
        return [done[side] for side in places]

    def _start(self, side: str, folder: Path, options: Options) -> Running:
        script, moved = self._lay_out(folder, side)
        arguments = _absolute(self._request.arguments)
        return runs.start(script, arguments, folder, options, self._server, moved, original=side != "converted")

    def _lay_out(self, folder: Path, side: str) -> tuple[Path, runs.Moved]:
        """Fill the side's working directory from the current one, the script being in it or beside it.

        Returns where the script is, and what stands for which folder of the user's.
        """
        here, script = Path.cwd().resolve(), self._request.script.resolve()
        files = self._sides.converted if side == "converted" else self._sides.original
        scratch.fill(folder / "work", here, script)
        root, top = here, folder / "work"
        if here not in self._sides.root.parents and here != self._sides.root:
            root, top = self._sides.root, folder / runs.SCRIPT
            scratch.fill(top, root, script)
        scratch.link_beside(folder, here)
        if root != here:
            scratch.link_beside(folder, root)
        for number, (path, data) in enumerate(files.items()):
            source = folder / "texts" / str(number) / path.name  # of one name, which a script may look up by `realpath`
            source.parent.mkdir(parents=True)
            source.write_bytes(data)
            scratch.put(top, path.relative_to(root), source)
        return top / script.relative_to(root), ((root, top.resolve()), (here, (folder / "work").resolve()))


def _made(place: Path) -> int:
    """How many steps a run has made: what the last lines of its recording say, if it is there yet."""
    events = place / "rank0" / "events.jsonl"
    if not events.exists():
        return 0
    with events.open("rb") as file:
        file.seek(max(0, events.stat().st_size - _TAIL))
        return max((int(before) + bool(is_step) for is_step, before in _STEP.findall(file.read())), default=0)


def _absolute(arguments: Sequence[str]) -> list[str]:
    """Arguments that lead out of the current directory, as absolute paths: the scripts run elsewhere."""
    return [
        os.path.abspath(argument) if argument.startswith("..") and os.path.exists(argument) else argument
        for argument in arguments
    ]
