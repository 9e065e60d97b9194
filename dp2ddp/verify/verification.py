"""Judge what both sides did: in a precision that can tell, and beside what the original doesn't do twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from dp2ddp.errors import BadInput
from dp2ddp.verify.compare.comparison import Comparison
from dp2ddp.verify.compare.finding import NUMBERS, STRUCTURE, Finding
from dp2ddp.verify.failures import warnings
from dp2ddp.verify.paired_runs import PairedRuns
from dp2ddp.verify.run.run_options import Options
from dp2ddp.verify.verdict import AGREE, DIFFER, CouldNotRun, Verdict

_SAME_TWICE = "Seed what it draws from, or switch off what depends on time, threads or the system's random numbers"
_MORE_THAN_A_STEP_S = 1e-4  # relative: rounding
_ONE_GPU = "so it is compared with one GPU's training: whole batches, but BatchNorm over each rank's rows"


class Verification:
    """One verification: both sides are run, if need be again, and judged.

    Args:
        pair: what runs them and compares.
        options: how.
        notes: what a reader has to know about the sides.
    """

    def __init__(self, pair: PairedRuns, options: Options, notes: Sequence[str]) -> None:
        self._pair = pair
        self._options = options
        self._given = notes
        self._notes = list(notes)

    def verdict(self) -> Verdict:
        """Run both sides, and judge.

        Raises:
            BadInput: there is no room for what they write.
        """
        try:
            found = self._by_replicas()
        except CouldNotRun as stopped:
            return Verdict(self._options, notes=self._notes, failure=stopped.failure)
        assert found.comparison is not None
        said = warnings(found.comparison.original.stderr, found.comparison.converted.output(0, "stderr"))
        return replace(found, warnings=[self._pair.by_own_names(each) for each in said])

    def _by_replicas(self) -> Verdict:
        """Compare with `nn.DataParallel`; with one GPU where that fails, or loses what makes the difference."""
        try:
            found = self._judged(self._compared(self._options))
        except CouldNotRun as stopped:
            if not stopped.failure.in_replicas:
                raise
            why = f"the original fails in nn.DataParallel's replicas ({stopped.failure.reason})"
            try:
                return self._by_one_gpu(why)
            except CouldNotRun as again:
                raise (stopped if again.failure.side == "original" else again) from again
        assert found.comparison is not None
        lost = found.comparison.recordings[0].noted["lost"]
        if found.exit_code == AGREE or not lost:
            return found
        try:
            other = self._by_one_gpu(f"with nn.DataParallel {lost[0]}")
        except CouldNotRun:
            return found
        return found if other.exit_code == DIFFER else other

    def _by_one_gpu(self, why: str) -> Verdict:
        reference = Verification(self._pair, self._options, [*self._given, f"{why}, {_ONE_GPU}"])
        return reference._judged(reference._compared(replace(self._options, one_gpu=True)))

    def _judged(self, verdict: Verdict) -> Verdict:
        options, comparison, findings = verdict.options, verdict.comparison, verdict.findings
        assert comparison is not None
        if options.synthetic is not None:
            self._notes.append(_synthetic(comparison.recordings[0].noted["synthetic"]))
        if not comparison.recordings[0].steps and not comparison.recordings[1].steps:
            self._notes.append("no optimizer step was taken: only output, files and exit codes were compared")
        drew = comparison.any_rows and any(run.noted["drew"] for run in comparison.recordings)
        if drew and findings and all(finding.kind in NUMBERS for finding in findings):
            why = (
                f"{findings[0]}. The model draws random numbers (dropout) for each row, and the ranks have other rows "
                "of a batch than the original: compare with dropout switched off"
            )
            return replace(verdict, findings=(), unshown=why)
        if findings:
            return self._repeatable(verdict, comparison)
        is_split = options.replicas == 1 or options.cuda or comparison.recordings[0].noted["split"]
        if not is_split and not verdict.unshown:
            why = (
                "the original called no nn.DataParallel, so no batch was split: run a part of it that trains the model"
            )
            return replace(verdict, unshown=why)
        return verdict

    def _once(self, options: Options) -> Verdict:
        comparison = self._pair.compared(options)
        return Verdict(options, comparison, comparison.findings, self._notes)

    def _compared(self, options: Options) -> Verdict:
        """Compare in the script's precision, and in float64 where numbers differ; there at once where sums must."""
        if options.one_gpu or (options.replicas > 2 and not options.cuda):
            found = self._in_float64(options, "sums over more or fewer rows round differently in float32")
            if isinstance(found, Verdict):
                return found
        first = self._once(options)
        assert first.comparison is not None
        mixed = first.comparison.recordings[0].mixed
        own = f"float32 and {mixed}" if mixed else "float32"
        if not first.findings or not first.findings[0].may_be_rounding:
            self._notes.append(f"compared in {own}")
            return first
        found = self._in_float64(options, f"in {own} they differ, which may be rounding")
        if isinstance(found, Verdict):
            if found.findings and _came_at_once(first.comparison):
                self._notes.append(f"shown is {own}, where both had the same bits up to there")
                return first  # in float64 a script draws other numbers, and trains otherwise
            return found
        unshown = f"in {own} they differ ({first.findings[0]}), which may be rounding; {found}"
        return replace(first, findings=(), unshown=unshown)

    def _in_float64(self, options: Options, why: str) -> Verdict | str:
        """Compare in float64; where the script doesn't compute in it, why."""
        try:
            found = self._once(replace(options, float64=True))
        except CouldNotRun as stopped:
            if options.one_gpu:
                raise
            return f"in float64 the {stopped.failure.side} script fails: {stopped.failure.reason}"
        assert found.comparison is not None
        original = found.comparison.recordings[0]
        dtypes = [getattr(torch, slot.dtype) for step in original.steps[:1] for slot in step.slots]
        if any(dtype.is_floating_point and dtype.itemsize < 8 for dtype in dtypes):
            return "the script makes its parameters less precise than float64 itself"
        self._notes.append(f"compared in float64: {why}")
        if original.mixed:
            self._notes.append("autocast casts nothing in float64")
        return found

    def _repeatable(self, verdict: Verdict, comparison: Comparison) -> Verdict:
        """The verdict without what the original's own second run has otherwise, too: that shows nothing."""
        options = replace(verdict.options, steps=verdict.findings[0].step or verdict.options.steps)
        try:
            twice = self._pair.compared(options, second="again")
        except CouldNotRun as stopped:
            self._notes.append(f"whether the original does the same twice isn't known: {stopped.failure.reason}")
            return verdict
        own = twice.findings
        shown = _unexplained(comparison, verdict.findings, twice) if own else verdict.findings
        if len(shown) == len(verdict.findings):
            return verdict
        what = str(replace(own[0], cause="")) + (f" ({own[0].at})" if own[0].at else "")
        why = f"the original doesn't do the same twice: {what}. {_SAME_TWICE}"
        return replace(verdict, findings=shown, unshown=why)


def check_devices(options: Options) -> None:
    """Raise `BadInput` where GPUs are asked for that this machine doesn't have."""
    there = torch.cuda.device_count()
    if options.cuda and there < options.replicas:
        what = f"{there} GPU(s) here, {options.replicas} asked for"
        raise BadInput("--device cuda", what=what, todo="without it the CPU stands in for them")


def _unexplained(comparison: Comparison, findings: Sequence[Finding], twice: Comparison) -> Sequence[Finding]:
    """Of the findings, those that the original's differences from itself don't explain."""
    if twice.training:  # what follows from training that differs, output and files, is explained, too
        begins = min((each.step for each in twice.training if each.step is not None), default=0)
        sure = STRUCTURE if any(each.kind == "setting" for each in twice.training) else STRUCTURE | {"setting"}
        return [each for each in findings if each.kind in sure or (each.step is not None and each.step < begins)]
    lines = {line.line for line in twice.lines}
    rest = replace(
        comparison,
        lines=tuple(line for line in comparison.lines if line.line not in lines),
        files={name: places for name, places in comparison.files.items() if name not in twice.files},
    )
    return rest.findings


def _came_at_once(comparison: Comparison) -> bool:
    """Whether training parts by more than one step's rounding, after steps of the same bits."""
    first = comparison.findings[0]
    before = [each.relative for each in comparison.steps[: (first.step or 1) - 1]]
    return first.step is not None and not any(before) and first.size > _MORE_THAN_A_STEP_S


def _synthetic(datasets: Sequence[str]) -> str:
    """What to say about data that was made up."""
    if not datasets:
        return "--synthetic-data made nothing up: the scripts use none of torchvision's data sets that it knows"
    return f"synthetic data: {', '.join(datasets)}; made-up samples, not the real ones"
