"""Where two trainings part: what each step is made of, in the order in which it happens, and the first that differs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dp2ddp.verify.compare import batches, steps
from dp2ddp.verify.compare.finding import TOLERANCE, Finding, factor_of, relative, shown, times
from dp2ddp.verify.compare.steps import negligible
from dp2ddp.verify.run import recording
from dp2ddp.verify.run.recording import Event

if TYPE_CHECKING:
    from dp2ddp.verify.compare.comparison import Comparison

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


def differences(both: Comparison) -> list[Finding]:
    """What makes training differ, the root first; what may follow from it is left out."""
    found = [*batches.differences(both.ours, both.ranks, any_order=both.foreign)]
    if both.diverged:
        step = min(len(each.steps) for each in both.ranks) + 1
        found.insert(0, Finding("diverged", f"the conversion ends: {both.diverged}", "", step))
    found += [finding for check in _CHECKS for finding in check(both)]
    found.sort(key=lambda finding: finding.step or 0)  # stable: within a step in the order of the checks
    if all(each.relative <= TOLERANCE for each in both.steps) and not any(_ended(both)):
        found = [replace(each, step=None) if each.kind in _SEEN_IN_EVALUATIONS else each for each in found]
    independent = _INDEPENDENT if both.foreign else {"diverged"}
    first: dict[str, Finding] = {}
    for each in found:
        if not first or each.kind in independent:
            made = both.ours.steps[each.step - 1 :] if each.step else []
            first.setdefault(each.kind, replace(each, at=each.at or (made[0].at if made else None)))
    return [*first.values()]


def _starts(both: Comparison) -> Iterator[Finding]:
    """Weights before an optimizer's first step: the ranks' among each other, then the two runs'."""
    each = steps.starts(both.ours, both.ranks)
    if each is not None:
        what = f"{each.who} start from other weights: {each.parameter} differs by {each.relative:.1e}"
        yield Finding("start", what, "", each.step, each.parameter, each.relative)


def _passed(both: Comparison) -> Iterator[Finding]:
    """The first step before which one side takes more batches, or calls `backward` more often."""
    taken = [Counter(batch.step for batch in run.batches.values()) for run in (both.ours, both.theirs)]
    called = [Counter(loss.step for loss in run.losses) for run in (both.ours, both.theirs)]
    for step in range(min(len(both.ours.steps), len(both.theirs.steps))):
        for what, counts in (("batches that are taken", taken), ("calls of backward", called)):
            a, b = (count[step] for count in counts)
            if a != b and not (both.foreign and counts is taken):  # frameworks take them ahead
                skipped = "a step is left out (skipped), or gradients accumulate over more batches"
                cause = skipped if b > a else "a step too many, or gradients accumulate over fewer batches"
                yield Finding("count", f"{what} before this step: {a}, converted {b}", cause, step + 1)
                return


def _calls(both: Comparison) -> Iterator[Finding]:
    """The first call of a wrapped model that one side doesn't make, or makes otherwise."""
    if both.foreign or not both.ours.forwards:
        return
    ours, theirs = (
        {(each.call, each.replica): each for run in runs for each in run.forwards} for runs in ([both.ours], both.ranks)
    )
    for call, replica in sorted({*ours, *theirs}):
        one, other = ours.get((call, replica)), theirs.get((call, replica))
        if one and other and (one.model, one.step) == (other.model, other.step):
            found = _call(both, one, other)
        else:  # a batch of few rows leaves the last replicas out, where a rank goes through the call all the same
            found = None if replica else _other_calls(both, min(each.step for each in (one, other) if each))
        if found:
            yield found
            return


def _other_calls(both: Comparison, step: int) -> Finding:
    a, b = (
        Counter(each.model for each in run.forwards if each.step == step and not each.replica)
        for run in (both.ours, both.theirs)
    )
    names = [", ".join(f"{name} ({count})" for name, count in side.items()) or "none" for side in (a, b)]
    missing = next(iter(a - b), None)
    cause = f"{missing} isn't wrapped there, or is called past its wrapper" if missing else ""
    what = f"wrapped models that run, and how often: {names[0]}; converted: {names[1]}"
    return Finding("calls", what, cause, step + 1)


def _call(both: Comparison, one: Event, other: Event) -> Finding | None:
    """What differs in a call: the mode, what the model is given, its buffers, what it returns."""
    model, step, on = one.model, one.step + 1, f" on rank {one.replica}" if one.replica else ""
    if one.modes != other.modes:
        modes = ["training" if each.modes[0] else "evaluation" for each in (one, other)]
        if modes[0] == modes[1]:
            modes = [f"{each.modes[1]} modules in training" for each in (one, other)]
        missing = "eval" if modes[0] == "evaluation" else "train"
        what = f"{model} runs in {modes[0]} mode, converted in {modes[1]} mode"
        return Finding("mode", what, f"`model.{missing}()` is left out there", step)
    if both.any_rows:
        return None
    given, returned = _apart(one.given, other.given), _apart(one.returned, other.returned)
    norms = {name: (norm, other.buffers[name]) for name, norm in one.buffers.items() if name in other.buffers}
    name = max(norms, key=lambda each: relative(*norms[each]), default="")
    a, b = norms.get(name, (0.0, 0.0))
    drawn = "they are augmented, transformed or drawn otherwise"
    made = "other weights or layers, or other random numbers (dropout)"
    for kind, what, cause, size in (
        ("input", f"what {model} is given{on} differs by {given:.1e}, of the same samples", drawn, given),
        ("buffer", f"{model} runs{on} with another {name}: its norm is {a:.6g}, converted {b:.6g}", "", relative(a, b)),
        ("output", f"what {model} returns{on} differs by {returned:.1e}, given the same", made, returned),
    ):
        if size > TOLERANCE:
            return Finding(kind, what, cause, step, size=size)
    return None


def _apart(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """The largest difference of tensors' sums (`state.sums`), relative to the norms."""
    if [*map(len, ours)] != [*map(len, theirs)]:
        return math.inf
    pairs = ((a, b, max(one[0], other[0])) for one, other in zip(ours, theirs) for a, b in zip(one, other))
    return max((relative(*pair) for pair in pairs), default=0.0)


def _losses(both: Comparison) -> Iterator[Finding]:
    """The first loss that isn't the original's."""
    ours, theirs = both.ours.losses, recording.global_losses(both.ranks)
    for number, (loss, other) in enumerate(zip(ours, theirs)):
        size, values = relative(loss.value, other), [rank.losses[number].value for rank in both.ranks]
        if not both.foreign and any(relative(values[0], value) > TOLERANCE for value in values[1:]):
            what = f"the loss given to backward is {shown(loss.value)}, the ranks' {', '.join(map(shown, values))}"
            cause = "each rank has a loss of its own: of its own rows, or of what it has drawn"
            yield Finding("loss", what, cause, loss.step + 1, at=loss.at)
            return
        if size > TOLERANCE:
            factor = _common_factor([(a.value, b) for a, b in zip(ours, theirs) if a.step == loss.step])
            if not factor or factor != _gradients_factor(both, loss.step, factor):
                factor = None
            what = f"the loss given to backward is {shown(loss.value)}, converted {shown(other)}"
            yield Finding("loss", what, times("the loss is", factor), loss.step + 1, None, size, loss.at, factor)
            return


def _kept(both: Comparison) -> Iterator[Finding]:
    """The first `backward` that adds to gradients on one side only."""
    for number, (one, another) in enumerate(zip(both.ours.losses, both.theirs.losses), start=1):
        if one.step == another.step and one.kept != another.kept:
            which = next(iter(set(one.kept) ^ set(another.kept))) + 1
            more = len(another.kept) > len(one.kept)
            has = "has gradients still, converted" if more else "has no gradients, unlike the original's"
            cause = "`zero_grad` is left out, so that gradients add up" if more else "gradients are cleared"
            yield Finding("kept", f"before call {number} of backward optimizer {which} {has}", cause, one.step + 1)
            return


def _settings(both: Comparison) -> Iterator[Finding]:
    """What an optimizer's groups are set to: learning rates, weight decay, momentum, ..."""
    for number, (one, other) in enumerate(zip(both.ours.steps, both.theirs.steps), start=1):
        of = f"of optimizer {one.optimizer + 1}"
        if len(one.settings) != len(other.settings):
            what = f"the number of parameter groups {of} is {len(one.settings)}, converted {len(other.settings)}"
            yield Finding("setting", what, "", number)
            return
        for group, (ours, theirs) in enumerate(zip(one.settings, other.settings), start=1):
            for name in {**ours, **theirs}:
                a, b = ours.get(name), theirs.get(name)
                if not _is_alike(a, b):
                    what = (
                        f"{_CALLED.get(name, name)} of parameter group {group} {of} is {shown(a)}, converted {shown(b)}"
                    )
                    yield Finding("setting", what, _cause(name, a, b, len(both.ranks)), number)
                    return


def _cause(name: str, original: Any, converted: Any, ranks: int) -> str:
    if name in _CAUSES or not all(type(value) in (int, float) for value in (original, converted)):
        return _CAUSES.get(name, "")
    factor = factor_of(original, converted)
    if factor is not None and ranks > 1 and math.isclose(factor, ranks):
        return "it is multiplied by the number of ranks"
    return times("it is", factor)


def _is_alike(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_is_alike, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return relative(a, b) <= TOLERANCE
    return bool(a == b)


def _gradients(both: Comparison) -> Iterator[Finding]:
    """The first step whose gradients' norms differ."""
    for number, (one, other) in enumerate(zip(both.ours.steps, both.theirs.steps)):
        if len(one.gradients) != len(other.gradients):
            continue  # other parameters, which is told by itself
        pairs, least = _norms(both, number)
        sizes = [relative(a, b, least) for a, b in pairs]
        worst = max(range(len(sizes)), key=sizes.__getitem__, default=None)
        if worst is not None and sizes[worst] > TOLERANCE:
            factor = _gradients_factor(both, number)
            name, (a, b) = one.slots[worst].name, pairs[worst]
            what = f"the gradient of {name} has norm {shown(a)}, converted {shown(b)}"
            cause = times("all gradients are", factor)
            yield Finding("gradient", what, cause, number + 1, name, sizes[worst], None, factor)
            return


def _norms(both: Comparison, step: int) -> tuple[list[tuple[float, float]], float]:
    """The gradients' norms in step `step` (from 0) on both sides, and up to where they may be rounding alone."""
    gradients = [run.steps[step].gradients if step < len(run.steps) else () for run in (both.ours, both.theirs)]
    pairs = [(a or 0.0, b or 0.0) for a, b in zip(*gradients)]
    return pairs, negligible(a for a, _ in pairs)


def _gradients_factor(both: Comparison, step: int, first: float | None = None) -> float | None:
    pairs, least = _norms(both, step)
    return _common_factor([pair for pair in pairs if max(pair) > least], first)


def _common_factor(pairs: Sequence[tuple[float, float]], first: float | None = None) -> float | None:
    """The factor that all numbers are multiplied by (`first`, if one is known), if there is one."""
    known = [factor_of(a, b) for a, b in pairs]
    first = first or (known[0] if known else None)
    fits = first and known and all(each and math.isclose(each, first, rel_tol=1e-3) for each in known)
    return first if fits else None


def _ranks(both: Comparison) -> Iterator[Finding]:
    """The first step after which ranks have other parameters than rank 0."""
    found = steps.apart(both.ranks)
    if found is not None:
        alone = both.foreign and not both.theirs.forwards
        cause = "gradients are not averaged: the model is in no DistributedDataParallel" if alone else ""
        what = f"{found.parameter} differs between {found.who} by {found.relative:.1e}"
        yield Finding("apart", what, cause, found.step, found.parameter)


def _parameters(both: Comparison) -> Iterator[Finding]:
    """The first update that differs."""
    for each in both.steps:
        if each.relative > TOLERANCE:
            what = f"{each.parameter} differs by {each.relative:.1e}"
            yield Finding("parameter", what, "", each.step, each.parameter, each.relative)
            return


def _ended(both: Comparison) -> Iterator[Finding]:
    """What one side does more often than the other, or in another precision."""
    ours, theirs = both.ours, both.theirs
    counts = {
        "optimizer steps": (len(ours.steps), len(theirs.steps)),
        "calls of backward": (len(ours.losses), len(theirs.losses)),
    }
    for what, (a, b) in counts.items():
        if a != b:
            yield Finding("count", f"{a} {what}, converted {b}", "", min(counts["optimizer steps"]) + 1)
    if ours.mixed != theirs.mixed:
        what = f"autocast to {ours.mixed or 'nothing'}, converted to {theirs.mixed or 'nothing'}"
        yield Finding("count", what, "", 1)


#: In the order of a step.
_CHECKS: Any = (
    *(_starts, _passed, _settings, _calls, _losses, _kept),
    *(_gradients, _ranks, _parameters, _ended),
)
