"""Where two trainings part: what each step is made of, in the order in which it happens, and the first that differs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dp2ddp.verify.compare import batches, steps
from dp2ddp.verify.compare.finding import TOLERANCE, Finding, factor_of, relative, shown, times
from dp2ddp.verify.compare.steps import StepDifference, negligible
from dp2ddp.verify.run import recording
from dp2ddp.verify.run.recording import Event, Recording

#: What an evaluation shows, too: where both train alike, it is no step's.
_SEEN_IN_EVALUATIONS = frozenset({"diverged", "batch", "shuffle", "calls", "mode", "input", "buffer", "output"})
#: What a script that was written by hand may have otherwise, each by itself.
_INDEPENDENT = frozenset({"start", "batch", "shuffle", "setting", "apart", "count"})
_CALLED = {"lr": "lr (learning rate)", "weight_decay": "weight decay", "class": "the class"}
_CAUSES = {
    "class": "another optimizer",
    "parameters": "the optimizer is given other parameters",
    "trained": "a layer is frozen on one side only (`requires_grad`)",
}


@dataclass(frozen=True)
class Sides:
    """The recordings of two trainings.

    Attributes:
        ours: the original's.
        ranks: the converted script's.
        updates: how far the parameters are apart after each step.
        foreign: the converted script isn't made for this project's runtime.
        any_rows: ranks may have any rows of a batch: so what their replicas are given isn't compared.
        diverged: what the runtime says of ranks that have come apart, at which the conversion has ended.
    """

    ours: Recording
    ranks: Sequence[Recording]
    updates: Sequence[StepDifference]
    foreign: bool = False
    any_rows: bool = False
    diverged: str = ""

    @property
    def theirs(self) -> Recording:
        """Rank 0's."""
        return self.ranks[0]


def differences(sides: Sides) -> list[Finding]:
    """What makes training differ, the root first; what may follow from it is left out."""
    found = [finding for check in _CHECKS for finding in check(sides)]
    found.sort(key=lambda finding: finding.step or 0)  # stable: within a step in the order of the checks
    if all(each.relative <= TOLERANCE for each in sides.updates) and not any(_ended(sides)):
        found = [replace(each, step=None) if each.kind in _SEEN_IN_EVALUATIONS else each for each in found]
    independent = _INDEPENDENT if sides.foreign else {"diverged"}
    rest = [each for each in found[1:] if each.kind in independent]
    first = {each.kind: each for each in reversed([*found[:1], *rest])}
    return [replace(each, at=_line(sides.ours, each)) for each in reversed(first.values())]


def _line(ours: Recording, finding: Finding) -> str | None:
    """The original's line where a finding is seen."""
    if finding.at is not None or finding.step is None:
        return finding.at
    return ours.steps[finding.step - 1].at if finding.step <= len(ours.steps) else None


def _starts(sides: Sides) -> Iterator[Finding]:
    """Weights before an optimizer's first step: the ranks' among each other, then the two runs'."""
    for each in steps.starts(sides.ours, sides.ranks):
        what = f"{each.who} start from other weights: {each.parameter} differs by {each.relative:.1e}"
        yield Finding("start", what, "", each.step, each.parameter, each.relative)
        return


def _passed(sides: Sides) -> Iterator[Finding]:
    """The first step before which one side takes more batches, or calls `backward` more often."""
    taken = [Counter(batch.step for batch in run.batches.values()) for run in (sides.ours, sides.theirs)]
    called = [Counter(loss.step for loss in run.losses) for run in (sides.ours, sides.theirs)]
    for step in range(min(len(sides.ours.steps), len(sides.theirs.steps))):
        for what, counts in (("batches that are taken", taken), ("calls of backward", called)):
            a, b = (count[step] for count in counts)
            if a != b and not (sides.foreign and counts is taken):  # frameworks take them ahead
                yield Finding("count", f"{what} before this step: {a}, converted {b}", _more_or_less(a, b), step + 1)
                return


def _more_or_less(a: int, b: int) -> str:
    if b > a:
        return "a step is left out (skipped), or gradients accumulate over more batches"
    return "a step too many, or gradients accumulate over fewer batches"


def _calls(sides: Sides) -> Iterator[Finding]:
    """The first call of a wrapped model that one side doesn't make, or makes otherwise."""
    if sides.foreign or not sides.ours.forwards:
        return
    ours, theirs = (
        {(each.call, each.replica): each for run in runs for each in run.forwards}
        for runs in ([sides.ours], sides.ranks)
    )
    for call, replica in sorted({*ours, *theirs}):
        one, other = ours.get((call, replica)), theirs.get((call, replica))
        if one and other and (one.model, one.step) == (other.model, other.step):
            found = _call(sides, one, other)
        else:  # a batch of few rows leaves the last replicas out, where a rank goes through the call all the same
            found = None if replica else _other_calls(sides, min(each.step for each in (one, other) if each))
        if found:
            yield found
            return


def _other_calls(sides: Sides, step: int) -> Finding:
    a, b = (
        Counter(each.model for each in run.forwards if each.step == step and not each.replica)
        for run in (sides.ours, sides.theirs)
    )
    names = [", ".join(f"{name} ({count})" for name, count in side.items()) or "none" for side in (a, b)]
    missing = next(iter(a - b), None)
    cause = f"{missing} isn't wrapped there, or is called past its wrapper" if missing else ""
    what = f"wrapped models that run, and how often: {names[0]}; converted: {names[1]}"
    return Finding("calls", what, cause, step + 1)


def _call(sides: Sides, one: Event, other: Event) -> Finding | None:
    """What differs in a call: the mode, what the model is given, its buffers, what it returns."""
    step, on = one.step + 1, f" on rank {one.replica}" if one.replica else ""
    if one.modes != other.modes:
        modes = ["training" if each.modes[0] else "evaluation" for each in (one, other)]
        if modes[0] == modes[1]:
            modes = [f"{each.modes[1]} modules in training" for each in (one, other)]
        missing = "eval" if modes[0] == "evaluation" else "train"
        what = f"{one.model} runs in {modes[0]} mode, converted in {modes[1]} mode"
        return Finding("mode", what, f"`model.{missing}()` is left out there", step)
    if sides.any_rows:
        return None
    size = _sums_apart(one.given, other.given)
    if size > TOLERANCE:
        what = f"what {one.model} is given{on} differs by {size:.1e}, of the same samples"
        return Finding("input", what, "they are augmented, transformed or drawn otherwise", step, None, size)
    sizes = {name: relative(one.buffers[name], other.buffers[name]) for name in one.buffers if name in other.buffers}
    name = max(sizes, key=lambda each: sizes[each], default="")
    if name and sizes[name] > TOLERANCE:
        what = f"{one.model} runs{on} with another {name}: its norm is {shown(one.buffers[name])}, converted"
        return Finding("buffer", f"{what} {shown(other.buffers[name])}", "", step, None, sizes[name])
    size = _sums_apart(one.returned, other.returned)
    if size > TOLERANCE:
        what = f"what {one.model} returns{on} differs by {size:.1e}, given the same"
        return Finding("output", what, "other weights or layers, or other random numbers (dropout)", step, None, size)
    return None


def _sums_apart(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """The largest difference of tensors' sums (`state.sums`), relative to the norms."""
    if [*map(len, ours)] != [*map(len, theirs)]:
        return math.inf
    found = [abs(a - b) / max(one[0], other[0]) for one, other in zip(ours, theirs) for a, b in zip(one, other)
             if a != b and not (math.isnan(a) and math.isnan(b))]  # fmt: skip
    return max((math.inf if math.isnan(each) else each for each in found), default=0.0)


def _losses(sides: Sides) -> Iterator[Finding]:
    """The first loss that isn't the original's; and the first `backward` that adds to gradients on one side only."""
    ours, theirs = sides.ours.losses, recording.global_losses(sides.ranks)
    for number, (loss, other) in enumerate(zip(ours, theirs)):
        size, values = relative(loss.value, other), [rank.losses[number].value for rank in sides.ranks]
        if not sides.foreign and any(relative(values[0], value) > TOLERANCE for value in values[1:]):
            what = f"the loss given to backward is {shown(loss.value)}, the ranks' {', '.join(map(shown, values))}"
            cause = "each rank has a loss of its own: of its own rows, or of what it has drawn"
            yield Finding("loss", what, cause, loss.step + 1, at=loss.at)
            break
        if size > TOLERANCE:
            factor = _common_factor([(a.value, b) for a, b in zip(ours, theirs) if a.step == loss.step])
            if not factor or factor != _common_factor(_norms(sides, loss.step), factor):
                factor = None
            cause = f"the loss is {times(factor)}" if factor else ""
            what = f"the loss given to backward is {shown(loss.value)}, converted {shown(other)}"
            yield Finding("loss", what, cause, loss.step + 1, None, size, loss.at, factor)
            break
    for number, (one, another) in enumerate(zip(ours, sides.theirs.losses), start=1):
        if one.step == another.step and one.kept != another.kept:
            which = next(iter(set(one.kept) ^ set(another.kept))) + 1
            more = len(another.kept) > len(one.kept)
            has = "has gradients still, converted" if more else "has no gradients, unlike the original's"
            cause = "`zero_grad` is left out, so that gradients add up" if more else "gradients are cleared"
            yield Finding("kept", f"before call {number} of backward optimizer {which} {has}", cause, one.step + 1)
            return


def _first(check: Callable[[Sides, int, Event, Event], Finding | None], sides: Sides) -> Iterator[Finding]:
    """Of the steps that both have made, the first at which a check of it (from 1) finds something."""
    for number, (one, other) in enumerate(zip(sides.ours.steps, sides.theirs.steps), start=1):
        found = check(sides, number, one, other)
        if found is not None:
            yield found
            return


def _setting(sides: Sides, number: int, one: Event, other: Event) -> Finding | None:
    """What an optimizer's groups are set to: learning rates, weight decay, momentum, ..."""
    of = f"of optimizer {one.optimizer + 1}"
    if len(one.settings) != len(other.settings):
        what = f"the number of parameter groups {of} is {len(one.settings)}, converted {len(other.settings)}"
        return Finding("setting", what, "", number)
    for group, (ours, theirs) in enumerate(zip(one.settings, other.settings), start=1):
        for name in {**ours, **theirs}:
            a, b = ours.get(name), theirs.get(name)
            if not _is_alike(a, b):
                what = f"{_CALLED.get(name, name)} of parameter group {group} {of} is {shown(a)}, converted {shown(b)}"
                return Finding("setting", what, _cause(name, a, b, len(sides.ranks)), number)
    return None


def _cause(name: str, original: Any, converted: Any, ranks: int) -> str:
    if name in _CAUSES or not all(type(value) in (int, float) for value in (original, converted)):
        return _CAUSES.get(name, "")
    factor = factor_of(original, converted)
    if factor is not None and ranks > 1 and math.isclose(factor, ranks):
        return "it is multiplied by the number of ranks"
    return f"it is {times(factor)}" if factor else ""


def _is_alike(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_is_alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return relative(a, b) <= TOLERANCE
    return bool(a == b)


def _gradient(sides: Sides, number: int, one: Event, other: Event) -> Finding | None:
    """The gradients' norms."""
    if len(one.gradients) != len(other.gradients):
        return None  # other parameters, which is told by itself
    pairs = [(a or 0.0, b or 0.0) for a, b in zip(one.gradients, other.gradients)]
    least = negligible(a for a, _ in pairs)
    sizes = [abs(a - b) / max(a, b, least) if a != b else 0.0 for a, b in pairs]
    sizes = [math.inf if math.isnan(size) else size for size in sizes]
    worst = max(range(len(sizes)), key=sizes.__getitem__, default=None)
    if worst is None or sizes[worst] <= TOLERANCE:
        return None
    factor = _common_factor(_norms(sides, number - 1))
    name, (a, b) = one.slots[worst].name, pairs[worst]
    what = f"the gradient of {name} has norm {shown(a)}, converted {shown(b)}"
    cause = f"all gradients are {times(factor)}" if factor else ""
    return Finding("gradient", what, cause, number, name, sizes[worst], None, factor)


def _norms(sides: Sides, step: int) -> list[tuple[float, float]]:
    """The gradients' norms in step `step` (from 0) on both sides, but for those that may be rounding alone."""
    both = [run.steps[step].gradients if step < len(run.steps) else () for run in (sides.ours, sides.theirs)]
    pairs = [(a or 0.0, b or 0.0) for a, b in zip(*both)]
    least = negligible(a for a, _ in pairs)
    return [pair for pair in pairs if max(pair) > least]


def _common_factor(pairs: Sequence[tuple[float, float]], first: float | None = None) -> float | None:
    """The factor that all numbers are multiplied by (`first`, if one is known), if there is one."""
    known = [factor_of(a, b) for a, b in pairs]
    first = first or (known[0] if known else None)
    fits = first and known and all(each and math.isclose(each, first, rel_tol=1e-3) for each in known)
    return first if fits else None


def _apart(sides: Sides) -> Iterator[Finding]:
    """The first step after which ranks have other parameters than rank 0."""
    found = steps.apart(sides.ranks)
    if found is not None:
        alone = sides.foreign and not sides.theirs.forwards
        cause = "gradients are not averaged: the model is in no DistributedDataParallel" if alone else ""
        what = f"{found.parameter} differs between {found.who} by {found.relative:.1e}"
        yield Finding("apart", what, cause, found.step, found.parameter)


def _parameters(sides: Sides) -> Iterator[Finding]:
    """The first update that differs."""
    found = next((each for each in sides.updates if each.relative > TOLERANCE), None)
    if found is not None:
        what = f"{found.parameter} differs by {found.relative:.1e}"
        yield Finding("parameter", what, "", found.step, found.parameter, found.relative)


def _ended(sides: Sides) -> Iterator[Finding]:
    """What one side does more often than the other, or in another precision."""
    ours, theirs = sides.ours, sides.theirs
    least = min(len(ours.steps), len(theirs.steps)) + 1
    for what in ("optimizer steps", "calls of backward"):
        a, b = (len(run.steps if what == "optimizer steps" else run.losses) for run in (ours, theirs))
        if a != b:
            yield Finding("count", f"{a} {what}, converted {b}", "", least)
    if ours.mixed != theirs.mixed:
        what = f"autocast to {ours.mixed or 'nothing'}, converted to {theirs.mixed or 'nothing'}"
        yield Finding("count", what, "", 1)


def _diverged(sides: Sides) -> Iterator[Finding]:
    if sides.diverged:
        step = min(len(each.steps) for each in sides.ranks) + 1
        yield Finding("diverged", f"the conversion ends: {sides.diverged}", "", step)


def _batches(sides: Sides) -> Iterator[Finding]:
    yield from batches.differences(sides.ours, sides.ranks, any_order=sides.foreign)


#: In the order of a step.
_CHECKS: Any = (
    _diverged,
    _batches,
    _starts,
    _passed,
    partial(_first, _setting),
    _calls,
    _losses,
    partial(_first, _gradient),
    _apart,
    _parameters,
    _ended,
)
