"""Run the original and the converted script side by side, and compare what they do while they do it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from dp2ddp.verify import failures
from dp2ddp.verify.compare.recordings import Comparison, compare, processes_of, rank_folders
from dp2ddp.verify.compare.steps import Steps
from dp2ddp.verify.progress import Show, Stage
from dp2ddp.verify.run import runs, scratch
from dp2ddp.verify.run.options import Options, Request
from dp2ddp.verify.run.runs import Run, Running, together
from dp2ddp.verify.run.sides import Sides
from dp2ddp.verify.start.client import ForkServer
from dp2ddp.verify.start.temporary import check_room
from dp2ddp.verify.verdict import CouldNotRun, Failure

LAST_PLACE = 1.0  # a printed number on the edge between two last digits may fall to either side


class SideBySide:
    """Runs both sides, any number of times.

    Args:
        request: the script, its arguments, and whether parameters are kept.
        folder: where the runs are.
        server: what starts them.
        sides: the files of each side.
        show: is told how far it is.
    """

    def __init__(self, request: Request, folder: Path, server: ForkServer, sides: Sides, show: Show) -> None:
        self._request = request
        self._folder = folder.resolve()
        self._server = server
        self._sides = sides
        self._show = show
        self._runs = 0

    def compared(self, options: Options, tolerance: float, second: str = "converted") -> Comparison:
        """Run both, at the same time unless they share GPUs, and compare.

        Args:
            second: what runs beside the original: the "converted" script, or the original "again", which is the one
                that is perturbed if one is.

        Raises:
            CouldNotRun: a side failed, or made no step.
            BadInput: the disk is full.
        """
        self._runs += 1
        self._show(Stage.STARTING, None)
        folder = self._folder / str(self._runs)
        places = {side: folder / side for side in ("original", second)}
        ranks = options.replicas if second == "converted" else 1
        options = replace(options, throttled=not (options.cuda or self._request.keep))
        steps = Steps(rank_folders(folder / "original", folder / second, ranks), self._request.keep)
        try:
            one, other = self._run(places, options, steps, ranks)
        except CouldNotRun as stopped:
            check_room(self._folder, stopped.failure.stderr)
            raise
        check_room(self._folder)
        self._show(Stage.COMPARING, None)
        foreign = options.foreign and second == "converted"
        try:
            comparison = compare(one.folder, other.folder, tolerance, LAST_PLACE, steps, foreign)
        except FileNotFoundError as missing:
            raise CouldNotRun(Failure(second, f"nothing was recorded ({missing})", other.stderr)) from missing
        if one.exit_code and not comparison.recordings[0].steps:  # wrong arguments, for one: nothing was compared
            reason = f"exit code {one.exit_code} before the first optimizer step"
            raise CouldNotRun(Failure("original", reason, one.stderr))
        return comparison

    def _run(self, places: Mapping[str, Path], options: Options, steps: Steps, ranks: int) -> Sequence[Run]:
        done: dict[str, Run] = {}
        patience = failures.Patience(self._sides)
        second = list(places)[1]
        hangs = failures.Hangs([places[second] / f"rank{rank}" for rank in range(ranks)])

        def look(ended: Mapping[str, Run]) -> None:
            steps.look(() if options.cuda else processes_of(ended, ranks))
            self._show(Stage.TRAINING, steps, self._sides.by_own_names("".join(hangs.news())))
            done.update(ended)
            patience.check(done)

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
        start = runs.start_converted if side == "converted" else runs.start_original
        options = replace(options, perturbed=options.perturbed and side == "again")
        return start(script, _absolute(self._request.arguments), folder, options, self._server, moved)

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
        for number, (path, data) in enumerate(files.items()):
            source = folder / f"{side}{number or ''}.py"
            source.write_bytes(data)
            scratch.put(top, path.relative_to(root), source)
        return top / script.relative_to(root), ((root, top.resolve()), (here, (folder / "work").resolve()))


def _absolute(arguments: Sequence[str]) -> list[str]:
    """Arguments that lead out of the current directory, as absolute paths: the scripts run elsewhere."""
    return [
        os.path.abspath(argument) if argument.startswith("..") and os.path.exists(argument) else argument
        for argument in arguments
    ]
