"""Judge what both sides did: in a precision that can tell, and beside what the original doesn't do twice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from dp2ddp.errors import BadInput
from dp2ddp.verify.compare import rounding
from dp2ddp.verify.compare.causes import explain
from dp2ddp.verify.compare.comparison import Comparison
from dp2ddp.verify.compare.finding import NUMBERS, STRUCTURE, Finding
from dp2ddp.verify.emulate.synthetic import MadeUp
from dp2ddp.verify.paired_runs import PairedRuns
from dp2ddp.verify.run.run_options import Options
from dp2ddp.verify.verdict import CouldNotRun, Verdict

_SAME_TWICE = "Seed what it draws from, or switch off what depends on time, threads or the system's random numbers"


class Verification:
    """One verification: both sides are run, if need be again, and judged.

    Args:
        pair: what runs them and compares.
        options: how.
        notes: what a reader has to know about the sides; more is added.
    """

    def __init__(self, pair: PairedRuns, options: Options, notes: list[str]) -> None:
        self._pair = pair
        self._options = options
        self._notes = notes

    def verdict(self) -> Verdict:
        """Run both sides, and judge.

        Raises:
            BadInput: there is no room for what they write.
        """
        try:
            return self._judged(self._compared())
        except CouldNotRun as stopped:
            return Verdict(self._options, notes=self._notes, failure=stopped.failure)

    def _judged(self, verdict: Verdict) -> Verdict:
        options, comparison, findings = verdict.options, verdict.comparison, verdict.findings
        assert comparison is not None
        if options.synthetic is not None:
            self._notes.append(_synthetic(verdict.synthetic))
        if comparison.names:
            self._notes.append(_renamed(comparison.names))
        if not comparison.steps and not any(finding.kind == "count" for finding in findings):
            self._notes.append("no optimizer step was taken: only output, files and exit codes were compared")
        by_dropout = any(rank.drew for rank in comparison.recordings[1:]) and comparison.rows_elsewhere
        if findings and by_dropout and all(finding.kind in NUMBERS for finding in findings):
            why = (
                f"{findings[0]}. The model draws random numbers (dropout) for each row, and the ranks have other rows "
                "of a batch than nn.DataParallel's replicas: compare with dropout switched off"
            )
            return replace(verdict, findings=(), unshown=why)
        if findings:
            return self._repeatable(verdict, comparison)
        if options.replicas > 1 and not options.cuda and not comparison.recordings[0].split:
            why = (
                "the original called no nn.DataParallel, so no batch was split: run a part of it that trains the model"
            )
            return replace(verdict, unshown=why)
        return verdict

    def _once(self, float64: bool = False) -> Verdict:
        options = replace(self._options, float64=float64)
        return self._explained(options, self._pair.compared(options))

    def _explained(self, options: Options, comparison: Comparison) -> Verdict:
        return Verdict(options, comparison, explain(comparison), self._notes)

    def _compared(self) -> Verdict:
        """Compare in the precision that can tell: float32 on up to two ranks, float64 on more, or where it differs."""
        if self._options.cuda:
            self._notes.append("on CUDA, in the script's own precision")
            return self._beyond_rounding(self._once())
        if self._options.replicas > 2:
            found = self._in_float64("sums over three and more ranks round differently in float32")
            return found or self._beyond_rounding(self._once())
        first = self._once()
        assert first.comparison is not None
        mixed = first.comparison.recordings[0].mixed
        own = f"float32 and {mixed}" if mixed else "float32"
        # Any size may be rounding: Adam makes a whole step of the sign of a gradient near 0.
        if not _may_be_rounding(first):
            self._notes.append(f"compared in {own}")
            return first
        largest = max(finding.size for finding in first.findings)
        by = "" if math.isinf(largest) else f" by {largest:.0e}"
        found = self._in_float64(f"in {own} they differ{by}, which may be rounding")
        if found is None:
            return self._beyond_rounding(first)
        if found.findings and _came_at_once(first.comparison):
            # In float64 a script draws other numbers, and trains otherwise.
            self._notes.append(f"shown is {own}, where both had the same bits up to the first difference")
            return first
        return found

    def _in_float64(self, why: str) -> Verdict | None:
        """Compare in float64; None where the script doesn't compute in it."""
        try:
            found = self._once(float64=True)
        except CouldNotRun as stopped:
            self._notes.append(f"in float64 the {stopped.failure.side} script fails ({stopped.failure.reason})")
            return None
        assert found.comparison is not None
        original = found.comparison.recordings[0]
        slots = [slot for step in original.steps[:1] for slot in step.slots]
        if any(slot.dtype.is_floating_point and slot.dtype.itemsize < 8 for slot in slots):
            self._notes.append("the script makes its parameters less precise than float64 itself")
            return None
        self._notes.append(f"compared in float64: {why}")
        if original.mixed:
            more = " (two ranks are compared in half precision first)" if self._options.replicas > 2 else ""
            self._notes.append(f"autocast casts nothing in float64{more}")
        return found

    def _beyond_rounding(self, first: Verdict) -> Verdict:
        """In how far `first` differs by more than a unit of rounding at the start can grow to in the original."""
        comparison = first.comparison
        assert comparison is not None
        if not _may_be_rounding(first):
            return first
        steps = len(comparison.steps) or first.options.steps
        try:
            # The original beside itself, with parameters that are off by a unit of rounding.
            twice = self._twice(replace(first.options, steps=steps, perturbed=True))
        except CouldNotRun as stopped:
            self._notes.append(f"how much rounding may do isn't known: {stopped.failure.reason}")
            return first
        may = rounding.measured(twice)
        self._notes.append(
            f"compared in the script's own precision: differences up to {may.largest:.0e} are rounding's, as the "
            "original shows that begins a unit of rounding elsewhere"
        )
        return self._explained(first.options, replace(comparison, rounding=may))

    def _repeatable(self, verdict: Verdict, comparison: Comparison) -> Verdict:
        """The verdict without what the original's own second run has otherwise, too: that shows nothing."""
        options = replace(verdict.options, steps=verdict.findings[0].step or verdict.options.steps)
        try:
            twice = self._twice(options)
        except CouldNotRun as stopped:
            self._notes.append(f"whether the original does the same twice isn't known: {stopped.failure.reason}")
            return verdict
        own = explain(twice)
        shown = _unexplained(comparison, verdict.findings, twice, own)
        if not own or len(shown) == len(verdict.findings):
            return verdict
        what = str(replace(own[0], cause="")) + (f" ({own[0].at})" if own[0].at else "")
        why = f"the original doesn't do the same twice: {what}. {_SAME_TWICE}"
        return replace(verdict, findings=shown, unshown=why)

    def _twice(self, options: Options) -> Comparison:
        """The original beside its own second run."""
        return self._pair.compared(options, second="again")


def check_devices(options: Options) -> None:
    """Raise `BadInput` where GPUs are asked for that this machine doesn't have."""
    there = torch.cuda.device_count()
    if options.cuda and there < options.replicas:
        what = f"{there} GPU(s) here, {options.replicas} asked for"
        raise BadInput("--device cuda", what=what, todo="without it the CPU stands in for them")


def _unexplained(
    comparison: Comparison, findings: Sequence[Finding], twice: Comparison, own: Sequence[Finding]
) -> Sequence[Finding]:
    """Of the findings, those that the original's differences from itself (`own`) don't explain."""
    begins = min((finding.step for finding in own if finding.step is not None), default=None)
    if begins is not None:  # what follows from training that differs, output and files, is explained, too
        sure = STRUCTURE if twice.setting else STRUCTURE | {"setting"}
        return [each for each in findings if each.kind in sure or (each.step is not None and each.step < begins)]
    return explain(replace(comparison, rounding=rounding.excused(comparison.rounding, twice)))


def _may_be_rounding(compared: Verdict) -> bool:
    """Whether the root of all that differs is a number."""
    return bool(compared.findings) and compared.findings[0].kind in NUMBERS


def _came_at_once(comparison: Comparison) -> bool:
    """Whether the first difference in training came after steps of the same bits."""
    first = comparison.first
    return first is not None and not any(step.relative for step in comparison.steps[: first.step - 1])


def _synthetic(datasets: Sequence[MadeUp]) -> str:
    """What to say about data that was made up."""
    if not datasets:
        return "--synthetic-data made nothing up: the scripts use none of torchvision's data sets that it knows"
    return f"synthetic data: {', '.join(map(str, datasets))}; made-up samples, not the real ones"


def _renamed(names: Mapping[str, str]) -> str:
    """What to say about names that a clock gave."""
    pairs = ", ".join(f"{new} for {old}" for new, old in names.items())
    return f"files are named after the clock; taken as one: {pairs}"
