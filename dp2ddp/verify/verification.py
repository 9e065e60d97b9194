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
from dp2ddp.verify.verdict import AGREE, DIFFER, Failure, Verdict

_SAME_TWICE = "Seed what it draws from, or switch off what depends on time, threads or the system's random numbers"
_MORE_THAN_A_STEP_S = 1e-4  # relative: rounding
_ONE_GPU = "so it is compared with one GPU's training: whole batches, but BatchNorm over each rank's rows"
_OTHER_DRAWS = (
    "The model draws random numbers (dropout) for each row, and the ranks have other rows of a batch than the "
)
_OTHER_DRAWS += "original: compare with dropout switched off"
_MEETS = (
    "The wrapper's `replicate` is the script's own, as where layers synchronise BatchNorm over replicas, which run "
)
_MEETS += "one after the other here: compare on GPUs (`--device cuda`)"
_DRAWS = "A backward draws random numbers, which are others for ranks than for replicas: compare without these"
_NOT_SPLIT = "the original called no nn.DataParallel, so no batch was split: run a part of it that trains the model"
_NONE_MADE_UP = "--synthetic-data made nothing up: the scripts use none of torchvision's data sets that it knows"


def verified(pair: PairedRuns, options: Options, notes: Sequence[str]) -> Verdict:
    """Run both sides, and judge. `notes` are what a reader has to know about the sides.

    Raises:
        BadInput: fewer GPUs than asked for, or no room for what they write.
    """
    there = torch.cuda.device_count()
    if options.cuda and there < options.replicas:
        what = f"{there} GPU(s) here, {options.replicas} asked for"
        raise BadInput("--device cuda", what=what, todo="without it the CPU stands in for them")
    try:
        found = _by_replicas(pair, Verdict(options, notes=notes))
    except Failure as stopped:
        return Verdict(options, notes=notes, failure=stopped)
    said = warnings(found.comparison.original.stderr, found.comparison.converted.output(0, "stderr"))
    return replace(found, warnings=[pair.by_own_names(each) for each in said])


def _by_replicas(pair: PairedRuns, begin: Verdict) -> Verdict:
    """Compare with `nn.DataParallel`; with one GPU where that fails, or loses what makes the difference."""

    def by_one_gpu(why: str) -> Verdict:
        return _judged(pair, replace(begin.noting(f"{why}, {_ONE_GPU}"), options=replace(begin.options, one_gpu=True)))

    try:
        found = _judged(pair, begin)
    except Failure as stopped:
        if not stopped.in_replicas:
            raise
        try:
            return by_one_gpu(f"the original fails in nn.DataParallel's replicas ({stopped.reason})")
        except Failure as again:
            raise (stopped if again.side == "original" else again) from again
    lost = found.comparison.ours.noted["lost"]
    if found.exit_code == AGREE or not lost:
        return found
    try:
        other = by_one_gpu(f"with nn.DataParallel {lost[0]}")
    except Failure:
        return found
    return found if other.exit_code == DIFFER else other


def _judged(pair: PairedRuns, begin: Verdict) -> Verdict:
    found = _in_some_precision(pair, begin)
    ours, options = found.comparison.ours, found.options
    if options.synthetic is not None:
        made = ", ".join(ours.noted["synthetic"])
        found = found.noting(f"synthetic data: {made}; made-up samples, not the real ones" if made else _NONE_MADE_UP)
    if not ours.steps and not found.comparison.theirs.steps:
        found = found.noting("no optimizer step was taken: only output, files and exit codes were compared")
    if found.findings:
        recordings = (ours, *found.comparison.ranks)
        drew = found.comparison.any_rows and any(run.noted["drew"] for run in recordings)
        why = _OTHER_DRAWS if drew else _MEETS if ours.noted["meets"] else _DRAWS if ours.noted["draws"] else ""
        if why and all(finding.kind in NUMBERS for finding in found.findings):
            return found.showing_nothing(f"{found.findings[0]}. {why}")
        return _beside_itself(pair, found)
    is_split = options.replicas == 1 or options.cuda or ours.noted["split"]
    return found if is_split or found.unshown else found.showing_nothing(_NOT_SPLIT)


def _once(pair: PairedRuns, begin: Verdict, options: Options) -> Verdict:
    comparison = pair.compared(options)
    return replace(begin, options=options, compared=comparison, findings=comparison.findings)


def _in_some_precision(pair: PairedRuns, begin: Verdict) -> Verdict:
    """Compare in the script's precision, and in float64 where numbers differ; there at once where sums must."""
    options = begin.options
    if options.one_gpu or (options.replicas > 2 and not options.cuda):
        found = _in_float64(pair, begin, "sums over more or fewer rows round differently in float32")
        if isinstance(found, Verdict):
            return found
    first = _once(pair, begin, options)
    mixed = first.comparison.ours.mixed
    own = f"float32 and {mixed}" if mixed else "float32"
    if not first.findings or not first.findings[0].may_be_rounding:
        return first.noting(f"compared in {own}")
    found = _in_float64(pair, begin, f"in {own} they differ, which may be rounding")
    if isinstance(found, str):
        return first.showing_nothing(f"in {own} they differ ({first.findings[0]}), which may be rounding; {found}")
    # By more than a step's rounding, after steps of the same bits: in float64 a script draws other numbers.
    root = first.findings[0]
    before = [each.relative for each in first.comparison.steps[: (root.step or 1) - 1]]
    if found.findings and root.step is not None and not any(before) and root.size > _MORE_THAN_A_STEP_S:
        return replace(first, notes=[*found.notes, f"shown is {own}, where both had the same bits up to there"])
    return found


def _in_float64(pair: PairedRuns, begin: Verdict, why: str) -> Verdict | str:
    """Compare in float64; where the script doesn't compute in it, why."""
    try:
        found = _once(pair, begin, replace(begin.options, float64=True))
    except Failure as stopped:
        if begin.options.one_gpu:
            raise
        return f"in float64 the {stopped.side} script fails: {stopped.reason}"
    ours = found.comparison.ours
    dtypes = [getattr(torch, slot.dtype) for step in ours.steps[:1] for slot in step.slots]
    if any(dtype.is_floating_point and dtype.itemsize < 8 for dtype in dtypes):
        return "the script makes its parameters less precise than float64 itself"
    mixed = ["autocast casts nothing in float64"] if ours.mixed else []
    return found.noting(f"compared in float64: {why}", *mixed)


def _beside_itself(pair: PairedRuns, verdict: Verdict) -> Verdict:
    """The verdict without what the original's own second run has otherwise, too: that shows nothing."""
    options = replace(verdict.options, steps=verdict.findings[0].step or verdict.options.steps)
    try:
        twice = pair.compared(options, second="again")
    except Failure as stopped:
        return verdict.noting(f"whether the original does the same twice isn't known: {stopped.reason}")
    own = twice.findings
    shown = _unexplained(verdict, twice) if own else verdict.findings
    if len(shown) == len(verdict.findings):
        return verdict
    what = str(replace(own[0], cause="")) + (f" ({own[0].at})" if own[0].at else "")
    return verdict.showing_nothing(f"the original doesn't do the same twice: {what}. {_SAME_TWICE}", but=shown)


def _unexplained(verdict: Verdict, twice: Comparison) -> Sequence[Finding]:
    """The findings that the original's differences from itself don't explain."""
    if not twice.training:
        return verdict.comparison.findings_beside(twice)
    # What follows from training that differs, output and files, is explained, too.
    begins = min((each.step for each in twice.training if each.step is not None), default=0)
    sure = STRUCTURE if any(each.kind == "setting" for each in twice.training) else STRUCTURE | {"setting"}
    return [each for each in verdict.findings if each.kind in sure or (each.step is not None and each.step < begins)]
