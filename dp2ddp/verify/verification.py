"""Run the original and the converted script side by side, and judge what they did."""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from dp2ddp.errors import BadInput
from dp2ddp.verify import repeatable
from dp2ddp.verify.compare import first_module
from dp2ddp.verify.compare.causes import NUMBERS, Finding, explain
from dp2ddp.verify.compare.enough import Enough, Seen
from dp2ddp.verify.compare.recordings import Comparison, compare, processes_of, rank_folders
from dp2ddp.verify.compare.steps import Steps
from dp2ddp.verify.emulate.synthetic import MadeUp
from dp2ddp.verify.precision import ROUNDING, Compared, Precision, beyond
from dp2ddp.verify.progress import Show, Stage
from dp2ddp.verify.request import Request
from dp2ddp.verify.run import runs, scratch
from dp2ddp.verify.run.gate import Gate
from dp2ddp.verify.run.hangs import Hangs
from dp2ddp.verify.run.options import Options
from dp2ddp.verify.run.runs import Run, Running, together
from dp2ddp.verify.run.sides import Sides
from dp2ddp.verify.start.keeping import Keeping
from dp2ddp.verify.start.temporary import Room
from dp2ddp.verify.verdict import CouldNotRun, Failure, Verdict

_IN_MODULES = {"loss", "update", "scale", "gradient"}
LAST_PLACE = 1.0  # a printed number on the edge between two last digits may fall to either side
_PATIENCE = 10.0  # seconds in which the original may fail, too
_TRACEBACK = "Traceback (most recent call last)"
_RANK = re.compile(r"^\[rank\d+\]: ")  # in front of each line of a rank's traceback
_OWN_FRAMES = re.compile(
    r'^(?:\[rank\d+\]: )?  File "(?:<frozen runpy>|[^"\n]*dp2ddp/verify/(?:start/keeper|start/ending|run/record)\.py)"'
    r".*\n"
    r"(?:(?:\[rank\d+\]: )?    .*\n)*",
    re.MULTILINE,
)


class Verification:
    """One verification.

    Args:
        folder: where the runs are.
        keeper: what starts them.
        both: the files of each side.
        show: is told how far it is.

    Raises:
        BadInput: fewer GPUs than asked for.
    """

    def __init__(self, request: Request, folder: Path, keeper: Keeping, both: Sides, show: Show) -> None:
        devices, wanted = torch.cuda.device_count(), request.options.replicas
        if request.options.cuda and devices < wanted:
            raise BadInput("--device cuda", what=f"{devices} GPU(s) here, {wanted} asked for", todo="try --device cpu")
        if both.foreign:
            request = replace(request, options=replace(request.options, foreign=True))
        self.request = request
        self.folder = folder.resolve()
        self.notes = both.notes
        self._keeper = keeper
        self._sides = both
        self._show = show
        self._runs = 0

    def verdict(self) -> Verdict:
        """Run both sides, and judge.

        Raises:
            BadInput: there is no room for what they write.
        """
        try:
            return self._verdict()
        except CouldNotRun as stopped:
            return Verdict(self.request.options, notes=self.notes, failure=stopped.failure)

    def _verdict(self) -> Verdict:
        options, comparison, findings = Precision(self.request, self._once, self.notes).compared()
        verdict = Verdict(options, comparison, findings, self.notes)
        if options.synthetic is not None:
            self.notes.append(_synthetic(verdict.synthetic))
        if comparison.names:
            self.notes.append(_renamed(comparison.names))
        if comparison.seen is not None:
            self.notes.append(_ended(comparison.seen, bool(findings)))
        if not comparison.steps and not any(finding.kind == "count" for finding in findings):
            self.notes.append("no optimizer step was taken: only output, files and exit codes were compared")
        by_dropout = any(rank.drew for rank in comparison.recordings[1:]) and comparison.rows_elsewhere
        if findings and by_dropout and all(finding.kind in NUMBERS for finding in findings):
            why = (
                f"{findings[0]}. The model draws random numbers (dropout) for each row, and the ranks have other rows "
                "of a batch than nn.DataParallel's replicas: compare with dropout switched off"
            )
            return replace(verdict, findings=(), unshown=why)
        if findings:
            return self._repeatable(verdict)
        if options.replicas > 1 and not options.cuda and not comparison.recordings[0].split:
            why = (
                "the original called no nn.DataParallel, so no batch was split: run a part of it that trains the model"
            )
            return replace(verdict, unshown=why)
        return verdict

    def _repeatable(self, verdict: Verdict) -> Verdict:
        """The verdict without what the original's own second run has otherwise, too."""
        assert verdict.comparison is not None
        made = len(verdict.comparison.steps) if verdict.comparison.seen else verdict.options.steps
        options = replace(verdict.options, steps=verdict.findings[0].step or made, auto=False)
        try:
            twice = self._twice(options, verdict.comparison.tolerance)
        except CouldNotRun as stopped:
            self.notes.append(f"whether the original does the same twice isn't known: {stopped.failure.reason}")
            return verdict
        judged = repeatable.judge(verdict.comparison, verdict.findings, twice)
        if judged.unshown is None:
            return replace(verdict, findings=self._located(verdict))
        what = str(replace(judged.unshown, cause="")) + (f" ({judged.unshown.at})" if judged.unshown.at else "")
        why = (
            f"the original doesn't do the same twice: {what}. "
            "Seed what it draws from, or switch off what depends on time, threads or the system's random numbers"
        )
        return replace(verdict, findings=judged.findings, unshown=why)

    def _once(self, options: Options, tolerance: float) -> Compared:
        steps, original, converted = self._run(options, tolerance)
        self._show(Stage.COMPARING, None)
        try:
            comparison = compare(original.folder, converted.folder, tolerance, LAST_PLACE, steps, options.foreign)
        except FileNotFoundError as missing:
            raise CouldNotRun(Failure("converted", f"nothing was recorded ({missing})", converted.stderr)) from missing
        if original.exit_code and not comparison.recordings[0].steps:  # wrong arguments, for one: nothing was compared
            reason = f"exit code {original.exit_code} before the first optimizer step"
            raise CouldNotRun(Failure("original", reason, original.stderr))
        return options, comparison, beyond(explain(comparison), tolerance)

    def _located(self, verdict: Verdict) -> Sequence[Finding]:
        """The findings, the first of them with the module in which it begins: both run to that step once more."""
        first, *rest = verdict.findings
        assert verdict.comparison is not None
        # Where ranks have other rows than replicas, their modules have other outputs.
        if first.kind not in _IN_MODULES or first.step is None or verdict.comparison.rows_elsewhere:
            return verdict.findings
        options = replace(verdict.options, steps=first.step, modules=first.step, auto=False)
        try:
            _, original, converted = self._run(options, self.request.tolerance)
        except CouldNotRun:
            return verdict.findings
        ours, *theirs = [*original.recordings(), *converted.recordings()]
        tolerance = 1e-9 if options.float64 else 1e-4
        where = first_module.first_difference(ours, theirs, tolerance, gradients=not options.foreign)
        return [replace(first, what=f"{first.what}, {where}" if where else first.what), *rest]

    def _twice(self, options: Options, tolerance: float) -> Comparison:
        """The original beside its own second run."""
        steps, one, other = self._run(options, tolerance, second="again")
        return compare(one.folder, other.folder, tolerance, LAST_PLACE, steps)

    def _run(self, options: Options, tolerance: float, second: str = "converted") -> tuple[Steps, Run, Run]:
        """Both sides, at the same time unless they share GPUs; what they do is compared meanwhile.

        Args:
            second: what runs beside the original: the "converted" script, or the original "again".
        """
        self._runs += 1
        self._show(Stage.STARTING, None)
        folder = self.folder / str(self._runs)
        places = {side: folder / side for side in ("original", second)}
        ranks = options.replicas if second == "converted" else 1
        options = replace(options, gate=None if options.cuda or self.request.keep else folder / "gate.json")
        steps = self._steps(rank_folders(places["original"], places[second], ranks), options, tolerance)
        room = Room(self.folder)
        done: dict[str, Run] = {}
        patience = Patience()
        hangs = Hangs([places[second] / f"rank{rank}" for rank in range(ranks)])

        def look(ended: Mapping[str, Run]) -> None:
            room.look()
            steps.look(() if options.cuda else processes_of(ended, ranks))
            self._show(Stage.TRAINING, steps, "".join(hangs.news()))
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
                raise CouldNotRun(_late(str(late.cmd), late.timeout, places)) from late
            except CouldNotRun as stopped:
                room.check(stopped.failure.stderr)
                raise
        room.check()
        return steps, done["original"], done[second]

    def _steps(self, folders: Sequence[Path], options: Options, tolerance: float) -> Steps:
        enough = None
        if options.auto:
            work = runs.Run(folders[0].parent, (), 0.0)
            enough = Enough(tolerance, exact=not options.float64, writes=lambda: bool(work.files()))
        gate = None
        if options.gate is not None:
            options.gate.parent.mkdir(parents=True, exist_ok=True)
            gate = Gate(options.gate)
        # Which tolerance counts in the end is decided when they have run.
        thresholds = {tolerance, self.request.tolerance, max(self.request.tolerance, ROUNDING)}
        return Steps(folders, self.request.keep, thresholds, gate, enough)

    def _start(self, side: str, folder: Path, options: Options) -> Running:
        script, moved = self._lay_out(folder, side)
        start = runs.start_converted if side == "converted" else runs.start_original
        return start(script, _absolute(self.request.arguments), folder, replace(options, moved=moved), self._keeper)

    def _lay_out(self, folder: Path, side: str) -> tuple[Path, tuple[tuple[Path, Path], ...]]:
        """Fill the side's working directory from the current one, the script being in it or beside it.

        Returns where the script is, and what stands for which folder of the user's.
        """
        here, script = Path.cwd().resolve(), self.request.script.resolve()
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


def _synthetic(datasets: Sequence[MadeUp]) -> str:
    """What to say about data that was made up."""
    if not datasets:
        return "--synthetic-data made nothing up: the scripts use none of torchvision's data sets that it knows"
    return f"synthetic data: {', '.join(map(str, datasets))}; made-up samples, not the real ones"


def _ended(seen: Seen, differ: bool) -> str:
    """What to say where both were ended early."""
    return f"ended after {seen.steps} steps" + (", as they differ" if differ else f": {seen}")


def _renamed(names: Mapping[str, str]) -> str:
    """What to say about names that a clock gave."""
    pairs = ", ".join(f"{new} for {old}" for new, old in names.items())
    return f"files are named after the clock; taken as one: {pairs}"


def _absolute(arguments: Sequence[str]) -> list[str]:
    """Arguments that lead out of the current directory, as absolute paths: the scripts run elsewhere."""
    return [
        os.path.abspath(argument) if argument.startswith("..") and os.path.exists(argument) else argument
        for argument in arguments
    ]


def _late(side: str, seconds: float, places: Mapping[str, Path]) -> Failure:
    stderr = "".join(path.read_text(errors="replace") for path in sorted(places[side].glob("rank*/stderr.txt")))
    return Failure(side, f"still running after {seconds:.0f} seconds", stderr)


def _tidied(stderr: str, folder: Path) -> str:
    """Without the frames of this package that started the script, and where its copies lay."""
    return _OWN_FRAMES.sub("", stderr).replace(f"{folder.resolve() / 'work'}{os.sep}", "")


def _exception_in(stderr: str) -> str:
    """The first line of what the last traceback ends with: the exception, whose message may have more lines."""
    lines = [_RANK.sub("", line) for line in stderr.rpartition(_TRACEBACK)[2].splitlines()[1:]]
    return next((line for line in lines if line.strip() and not line.startswith(" ")), "an exception")


class Patience:
    """Ends a comparison where a side could not run. Of what fails on both sides, the original is told of."""

    def __init__(self) -> None:
        self._until = math.inf

    def check(self, done: Mapping[str, Run]) -> None:
        """Look at the sides that have ended.

        Raises:
            CouldNotRun: one could not run, and the original has ended as well or had its time.
        """
        for side in ("original", "converted"):
            failure = _failure(side, done) if side in done else None
            if failure is None:
                continue
            self._until = min(self._until, time.monotonic() + _PATIENCE)
            if "original" in done or time.monotonic() > self._until:
                raise CouldNotRun(failure)


def _failure(side: str, done: Mapping[str, Run]) -> Failure | None:
    """A script that fails by an exception or a signal could not run; one that just says so by its exit code did."""
    run = done[side]
    if not run.exit_code:
        return None
    outputs = [run.output(rank, "stderr") for rank in range(len(run.exit_codes))]
    own = next((text for text in outputs if _TRACEBACK in text), None)
    if own is not None:
        return Failure(side, _exception_in(own), _tidied(own, run.folder))
    alone = side == "converted" and "original" in done and not done["original"].exit_code
    return Failure(side, f"exit code {run.exit_code}", run.stderr) if run.exit_code < 0 or alone else None
