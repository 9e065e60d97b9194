"""Run the original and the converted script side by side, and judge what they did."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from dp2ddp.verify import failures, repeatable
from dp2ddp.verify.compare import first_module
from dp2ddp.verify.compare.causes import explain
from dp2ddp.verify.compare.enough import Enough, Seen
from dp2ddp.verify.compare.finding import NUMBERS, Finding
from dp2ddp.verify.compare.recordings import Comparison, compare, processes_of, rank_folders
from dp2ddp.verify.compare.steps import Steps
from dp2ddp.verify.emulate.synthetic import MadeUp
from dp2ddp.verify.precision import Compared, Precision, beyond
from dp2ddp.verify.progress import Show, Stage
from dp2ddp.verify.request import Request
from dp2ddp.verify.run import devices, runs, scratch
from dp2ddp.verify.run.gate import Gate
from dp2ddp.verify.run.hangs import Hangs
from dp2ddp.verify.run.options import Options
from dp2ddp.verify.run.runs import Run, Running, together
from dp2ddp.verify.run.sides import Sides
from dp2ddp.verify.start.keeping import Keeping
from dp2ddp.verify.start.temporary import Room
from dp2ddp.verify.verdict import CouldNotRun, Failure, Verdict

_IN_MODULES = {"loss", "update", "scale", "gradient"}
_COMPILING = "dp2ddp: verify: compiling the pretend CUDA devices, once, which takes a minute\n"
LAST_PLACE = 1.0  # a printed number on the edge between two last digits may fall to either side


class Verification:
    """One verification.

    Args:
        folder: where the runs are.
        keeper: what starts them.
        both: the files of each side.
        show: is told how far it is.

    Raises:
        BadInput: fewer GPUs than asked for, and none that are pretended; `--steps auto` on GPUs.
    """

    def __init__(self, request: Request, folder: Path, keeper: Keeping, both: Sides, show: Show) -> None:
        options = devices.chosen(request.options, lambda: show(Stage.STARTING, None, _COMPILING))
        self.request = replace(request, options=replace(options, foreign=both.foreign or options.foreign))
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
        precision = Precision(self.request, self._once, self._perturbed, self.notes)
        options, comparison, findings = precision.compared()
        verdict = Verdict(options, comparison, findings, self.notes)
        if options.pretended:
            self.notes.append(f"CUDA is pretended: this machine has fewer than {options.replicas} GPU(s)")
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

    def _perturbed(self, first: Compared) -> Comparison:
        """The original beside itself, with parameters that are off by a unit of rounding at the start."""
        options = replace(first[0], steps=len(first[1].steps) or first[0].steps, auto=False, perturbed=True)
        return self._twice(options, first[1].tolerance)

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
        patience = failures.Patience(self._sides)
        hangs = Hangs([places[second] / f"rank{rank}" for rank in range(ranks)])

        def look(ended: Mapping[str, Run]) -> None:
            room.look()
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
                raise CouldNotRun(failures.late(str(late.cmd), late.timeout, places, self._sides)) from late
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
        thresholds = {tolerance, self.request.tolerance, 1e-4, 1e-3, 1e-2}
        return Steps(folders, self.request.keep, thresholds, gate, enough)

    def _start(self, side: str, folder: Path, options: Options) -> Running:
        script, moved = self._lay_out(folder, side)
        start = runs.start_converted if side == "converted" else runs.start_original
        options = replace(options, perturbed=options.perturbed and side == "again")
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
