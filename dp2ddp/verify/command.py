"""Verify a conversion: run the original and the converted script side by side, and judge what they did."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from dp2ddp.errors import BadInput
from dp2ddp.verify.compare import repeats
from dp2ddp.verify.compare.causes import Finding, explain
from dp2ddp.verify.compare.compare import Comparison, compare
from dp2ddp.verify.compare.repeats import Repeats
from dp2ddp.verify.emulate.synthetic import MadeUp
from dp2ddp.verify.run import runs, scratch, sides
from dp2ddp.verify.run.runs import Options, Run
from dp2ddp.verify.verdict import REPEATS, Failure, Request, Verdict

ROUNDING = 1e-3  # float32's rounding may grow to this; what is larger is not rounding
LAST_PLACE = 1.0  # a printed number on the edge between two last digits may fall to either side
_TRACEBACK = "Traceback (most recent call last)"
_RANK = re.compile(r"^\[rank\d+\]: ")  # in front of each line of a rank's traceback
_RANDOM_KINDS = {"batch", "draw", "update", "scale", "loss", "rounding", "printed", "file"}


class _CouldNotRun(Exception):  # noqa: N818 - the user's script failed, not this program
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


@contextmanager
def verifying(request: Request) -> Iterator[Verdict]:
    """Verify; the runs' folders are there as long as the context is.

    Raises:
        BadInput: a script that can't be read or converted, or fewer GPUs than asked for.
    """
    devices, wanted = torch.cuda.device_count(), request.options.replicas
    if request.options.cuda and devices < wanted:
        raise BadInput("--device cuda", what=f"{devices} GPU(s) here, {wanted} asked for", todo="try --device cpu")
    with tempfile.TemporaryDirectory(prefix="dp2ddp-verify-") as temporary:
        yield _Verification(request, request.folder or Path(temporary)).verdict()


class _Verification:
    def __init__(self, request: Request, folder: Path) -> None:
        self.request = request
        self.folder = folder.resolve()
        self._runs = 0
        self._sides = sides.prepare(request.script, request.converted, allow_ddp=request.allow_ddp)
        self.notes = self._sides.notes

    def verdict(self) -> Verdict:
        try:
            return self._verdict()
        except _CouldNotRun as stopped:
            return Verdict(self._options(), notes=self.notes, failure=stopped.failure)

    def _verdict(self) -> Verdict:
        options, comparison, findings = self._compared()
        verdict = Verdict(options, comparison, findings, self.notes)
        if options.synthetic is not None:
            self.notes.append(_synthetic(verdict.synthetic))
        if comparison.names:
            self.notes.append(_renamed(comparison.names))
        if not comparison.steps and not any(finding.kind == "count" for finding in findings):
            self.notes.append("no optimizer step was taken: only output, files and exit codes were compared")
        draws = any(recording.draws is not None for recording in comparison.recordings)
        if not findings or not draws or comparison.trained_alike or self.request.options.replicas == 1:
            return verdict
        hard = [finding for finding in findings if finding.kind not in _RANDOM_KINDS or _is_first_shuffle(comparison)]
        self.notes.append(
            "fetching samples draws random numbers (augmentation), and the ranks draw others than the original: for an "
            "exact comparison switch it off, or load without worker processes"
        )
        if hard:
            return replace(verdict, findings=hard)
        repeated = self._repeat(options, comparison)
        return replace(verdict, findings=repeated.findings(), repeats=repeated)

    def _options(self, float64: bool = False) -> Options:
        return replace(self.request.options, float64=float64)

    def _compared(self) -> tuple[Options, Comparison, list[Finding]]:
        """Compare in the precision that can tell: float32 on up to two ranks, float64 on more, or where it differs."""
        many = self.request.options.replicas > 2
        if self.request.options.cuda:
            self.notes.append(f"on CUDA, in the script's own precision: differences up to {ROUNDING:g} are rounding's")
            return self._once(self._options(), max(self.request.tolerance, ROUNDING))
        if many:
            why = "sums over three and more ranks round differently in float32"
            return self._in_float64(why) or self._in_float32_only(None)
        first = self._once(self._options(), self.request.tolerance)
        mixed = first[1].recordings[0].mixed
        own = f"float32 and {mixed}" if mixed else "float32"
        largest = max((finding.size for finding in first[2]), default=0.0)
        # Half precision has 8 bits, and Adam makes a whole step of the sign of a gradient near 0: any size may be
        # rounding.
        if not largest or (largest > ROUNDING and not mixed):
            self.notes.append(f"compared in {own}")
            return first
        why = f"in {own} they differ by at most {largest:.0e}, as rounding does"
        return self._in_float64(why) or self._in_float32_only(first)

    def _in_float64(self, why: str) -> tuple[Options, Comparison, list[Finding]] | None:
        """Compare in float64; None where the script doesn't compute in it."""
        try:
            found = self._once(self._options(float64=True), self.request.tolerance)
        except _CouldNotRun as stopped:
            self.notes.append(f"in float64 the {stopped.failure.side} script fails ({stopped.failure.reason})")
            return None
        slots = [slot for step in found[1].recordings[0].steps[:1] for slot in step.slots]
        if any(slot.dtype.is_floating_point and slot.dtype.itemsize < 8 for slot in slots):
            self.notes.append("the script makes its parameters less precise than float64 itself")
            return None
        self.notes.append(f"compared in float64: {why}")
        if found[1].recordings[0].mixed:
            more = " (two ranks are compared in half precision first)" if self.request.options.replicas > 2 else ""
            self.notes.append(f"autocast casts nothing in float64{more}")
        return found

    def _in_float32_only(
        self, first: tuple[Options, Comparison, list[Finding]] | None
    ) -> tuple[Options, Comparison, list[Finding]]:
        tolerance = max(self.request.tolerance, ROUNDING)
        self.notes.append(f"compared in float32: differences up to {tolerance:g} are taken for rounding")
        if first is None:
            return self._once(self._options(), tolerance)
        comparison = replace(first[1], tolerance=tolerance)
        return first[0], comparison, _beyond(explain(comparison), tolerance)

    def _once(self, options: Options, tolerance: float) -> tuple[Options, Comparison, list[Finding]]:
        original, converted = self._run(options)
        try:
            comparison = compare(original.folder, converted.folder, tolerance, LAST_PLACE)
        except FileNotFoundError as missing:
            raise _CouldNotRun(Failure("converted", f"nothing was recorded ({missing})", converted.stderr)) from missing
        if original.exit_code and not comparison.recordings[0].steps:  # wrong arguments, for one: nothing was compared
            reason = f"exit code {original.exit_code} before the first optimizer step"
            raise _CouldNotRun(Failure("original", reason, original.stderr))
        return options, comparison, _beyond(explain(comparison), tolerance)

    def _repeat(self, options: Options, first: Comparison) -> Repeats:
        pairs = [(_final(first.original, options), _final(first.converted, options))]
        for shift in range(1, max(2, self.request.repeats or REPEATS)):
            original, converted = self._run(replace(options, shift=shift, seed=options.seed + shift))
            pairs.append((_final(original, options), _final(converted, options)))
        return repeats.judge(pairs)

    def _run(self, options: Options) -> tuple[Run, Run]:
        """Both sides, at the same time unless they share GPUs."""
        self._runs += 1
        starts = {"original": runs.start_original, "converted": runs.start_converted}
        started: dict[str, runs.Running] = {}
        done: dict[str, Run] = {}
        try:
            for side, start in starts.items():
                folder = self.folder / str(self._runs) / side
                script, moved = self._lay_out(folder, side)
                placed = replace(options, moved=moved)
                started[side] = start(script, _absolute(self.request.arguments), folder, placed)
                if options.cuda:
                    done[side] = _finish(side, started[side])
            for side in starts.keys() - done.keys():
                done[side] = _finish(side, started[side])
        finally:
            for running in started.values():
                running.kill()
        for side in starts:
            _check(side, done[side], [run.exit_code for run in done.values()])
        return done["original"], done["converted"]

    def _lay_out(self, folder: Path, side: str) -> tuple[Path, tuple[tuple[Path, Path], ...]]:
        """Fill the side's working directory from the current one, the script being in it or beside it.

        Returns where the script is, and what stands for which folder of the user's.
        """
        here, script = Path.cwd().resolve(), self.request.script.resolve()
        files = self._sides.original if side == "original" else self._sides.converted
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


def _beyond(findings: Sequence[Finding], tolerance: float) -> list[Finding]:
    """Without what a coarse `tolerance` takes for rounding in printed numbers, too."""
    if tolerance < ROUNDING:
        return list(findings)
    return [finding for finding in findings if finding.size > tolerance]


def _synthetic(datasets: Sequence[MadeUp]) -> str:
    """What to say about data that was made up."""
    if not datasets:
        return "--synthetic-data made nothing up: the scripts use none of torchvision's data sets that it knows"
    return f"synthetic data: {', '.join(map(str, datasets))}; made-up samples, not the real ones"


def _renamed(names: Mapping[str, str]) -> str:
    """What to say about names that a clock gave."""
    pairs = ", ".join(f"{new} for {old}" for new, old in names.items())
    return f"files are named after the clock; taken as one: {pairs}"


def _is_first_shuffle(comparison: Comparison) -> bool:
    """Whether even the first batches differ, which augmentation doesn't explain: they were drawn before it."""
    return comparison.batch is not None and comparison.batch.iterator == 0


def _final(run: Run, options: Options) -> str:
    """Where a run says how well it trained: in its output; in its last losses, if it was ended early."""
    if options.steps is None:
        return run.stdout
    last = run.losses()[-max(1, options.steps // 4) :]
    return f"mean of the last losses {statistics.fmean(last):.6g}" if last else ""


def _absolute(arguments: Sequence[str]) -> list[str]:
    """Arguments that lead out of the current directory, as absolute paths: the scripts run elsewhere."""
    return [
        os.path.abspath(argument) if argument.startswith("..") and os.path.exists(argument) else argument
        for argument in arguments
    ]


def _finish(side: str, running: runs.Running) -> Run:
    try:
        return running.wait()
    except subprocess.TimeoutExpired as late:
        stderr = "".join(path.read_text(errors="replace") for path in sorted(running.folder.glob("rank*/stderr.txt")))
        raise _CouldNotRun(Failure(side, f"still running after {late.timeout:.0f} seconds", stderr)) from late


def _exception_in(stderr: str) -> str:
    """The first line of what the last traceback ends with: the exception, whose message may have more lines."""
    lines = [_RANK.sub("", line) for line in stderr.rpartition(_TRACEBACK)[2].splitlines()[1:]]
    return next((line for line in lines if line.strip() and not line.startswith(" ")), "an exception")


def _check(side: str, run: Run, codes: Sequence[int]) -> None:
    """A script that fails by an exception or a signal could not run; one that just says so by its exit code did."""
    if not run.exit_code:
        return
    outputs = [run.output(rank, "stderr") for rank in range(len(run.exit_codes))]
    own = next((text for text in outputs if _TRACEBACK in text), None)
    if own is not None:
        raise _CouldNotRun(Failure(side, _exception_in(own), own))
    if run.exit_code < 0 or (side == "converted" and not codes[0]):
        raise _CouldNotRun(Failure(side, f"exit code {run.exit_code}", run.stderr))
