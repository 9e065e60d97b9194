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
from dp2ddp.verify.compare.comparison import Comparison
from dp2ddp.verify.run import runs, scratch
from dp2ddp.verify.run.run_options import Options
from dp2ddp.verify.run.runs import Run, Running, together
from dp2ddp.verify.run.side_by_side import SideBySide
from dp2ddp.verify.start.client import ForkServer
from dp2ddp.verify.verdict import Failure

_STEP = re.compile(rb'("kind": "step", )?"step": (\d+)')  # how many were made before
_TAIL = 1 << 16  # bytes
_PATIENCE = 10.0  # seconds in which the original may fail, too


class PairedRuns:
    """Runs both sides, any number of times, in a folder below `folder` each."""

    def __init__(
        self, script: Path, arguments: Sequence[str], folder: Path, server: ForkServer, sides: SideBySide
    ) -> None:
        self._script, self._folder, self._server, self._sides = script, folder, server, sides
        # Those that lead out of the current directory as absolute paths: the scripts run elsewhere.
        leads_out = [text.startswith("..") and os.path.exists(text) for text in arguments]
        self._arguments = [os.path.abspath(each) if out else each for each, out in zip(arguments, leads_out)]
        self.by_own_names = sides.by_own_names
        self._runs = 0

    def compared(self, options: Options, second: str = "converted") -> Comparison:
        """Run both, at the same time unless they share GPUs, and compare.

        Args:
            second: what runs beside the original: the "converted" script, or the original "again".

        Raises:
            Failure: a side failed, or made no step.
        """
        self._runs += 1
        folder = self._folder / str(self._runs)
        done = self._run({side: folder / side for side in ("original", second)}, options)
        one, other = done["original"], done[second]
        progress.doing("comparing")
        asked = {"foreign": options.foreign, "one_gpu": options.one_gpu} if second == "converted" else {}
        try:
            found = Comparison(one, other, **asked, diverged=self.by_own_names(failures.divergence(other)))
        except FileNotFoundError as missing:
            raise Failure(second, f"nothing was recorded ({missing})", other.stderr) from missing
        if one.exit_code and not found.ours.steps:  # wrong arguments, for one: nothing was compared
            reason = f"exit code {one.exit_code} before the first optimizer step"
            raise Failure("original", reason, one.stderr)
        return found

    def _run(self, places: Mapping[str, Path], options: Options) -> Mapping[str, Run]:
        done: dict[str, Run] = {}
        failed: list[float] = []

        def look(ended: Mapping[str, Run]) -> None:
            progress.doing("training: " + ", ".join(f"{side} at step {_made(place)}" for side, place in places.items()))
            done.update(ended)
            found = [each for side in places if side in done and (each := failures.failure(side, done, self._sides))]
            if found:  # of what fails on both sides, the original is told of
                failed.append(time.monotonic())
                if "original" in done or failed[-1] - failed[0] > _PATIENCE:
                    raise found[0]

        with ExitStack() as running:
            started: dict[str, Running] = {}
            try:
                for side, place in places.items():
                    started[side] = running.enter_context(self._start(side, place, options))
                    if options.cuda:
                        together({side: started[side]}, look)
                together({side: each for side, each in started.items() if side not in done}, look)
            except subprocess.TimeoutExpired as late:
                raise failures.timed_out(str(late.cmd), late.timeout, places, self._sides) from late
        return done

    def _start(self, side: str, folder: Path, options: Options) -> Running:
        """Start a side in a working directory like the current one, the script being in it or beside it."""
        here, work = Path.cwd().resolve(), folder / "work"
        files = self._sides.converted if side == "converted" else self._sides.original
        scratch.fill(work, here, self._script)
        scratch.link_beside(folder, here)
        root, top = here, work
        if here not in self._sides.root.parents and here != self._sides.root:
            root, top = self._sides.root, folder / runs.SCRIPT
            scratch.fill(top, root, self._script)
            scratch.link_beside(folder, root)
        for number, (path, data) in enumerate(files.items()):
            source = folder / "texts" / str(number) / path.name  # of one name, which a script may look up by `realpath`
            source.parent.mkdir(parents=True)
            source.write_bytes(data)
            scratch.put(top, path.relative_to(root), source)
        script, moved = top / self._script.relative_to(root), ((root, top.resolve()), (here, work.resolve()))
        is_original = side != "converted"
        return runs.start(script, self._arguments, folder, options, self._server, moved, original=is_original)


def _made(place: Path) -> int:
    """How many steps a run has made: what the last lines of its recording say, if it is there yet."""
    events = place / "rank0" / "events.jsonl"
    if not events.exists():
        return 0
    with events.open("rb") as file:
        file.seek(max(0, events.stat().st_size - _TAIL))
        return max((int(before) + bool(is_step) for is_step, before in _STEP.findall(file.read())), default=0)
