"""What a comparison found, put into words: where two runs diverge first, and the likely cause."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dp2ddp.verify.compare import evidence, outcomes, rounding
from dp2ddp.verify.compare.comparison import BatchDifference, Comparison
from dp2ddp.verify.compare.finding import TOLERANCE, Finding
from dp2ddp.verify.compare.steps import StepDifference
from dp2ddp.verify.run import recording
from dp2ddp.verify.run.recording import Recording

_SAME_DIRECTION = 1e-3  # what may remain of an update that is a multiple of another one
_OWN = "each rank has a loss of its own: of its own rows, or of what it has drawn"
_GRADIENTS = 1e-4  # a relative difference of their norms that may be rounding
_INDEPENDENT = {"start", "shuffle", "setting", "apart"}


def explain(comparison: Comparison) -> list[Finding]:
    """Everything in which the runs don't agree, the root of it first; empty if they agree.

    Of what makes training differ only the first is named: the rest follows from it.
    """
    # Stable: of one step, causes come first.
    training = sorted(_training_findings(comparison), key=lambda finding: finding.step or 0)
    named = training[:1]
    # What an optimizer is set to is so whatever is drawn.
    named += [each for each in training[1:] if each.kind == "setting" and each.step == named[0].step]
    if comparison.foreign:  # whoever wrote it by hand wants to know of all that isn't the original's
        named += [each for each in training[1:] if each.kind in _INDEPENDENT and each not in named]
    # That one side does more than the other follows from what it trains otherwise, if it does.
    found = [*_structure_findings(comparison), *named, *_exit_and_counts(comparison)]
    differs = bool(training)
    found += outcomes.outcome_findings(comparison, differs)
    return [replace(finding, at=_original_line(comparison, finding)) for finding in found]


def _original_line(comparison: Comparison, finding: Finding) -> str | None:
    """The original's line where a finding is seen."""
    if finding.step is None:
        return None
    ours = comparison.recordings[0]
    if finding.kind in {"batch", "shuffle"} and comparison.batch is not None:
        return next((batch.at for batch in ours.batches if batch.iterator == comparison.batch.iterator), None)
    if finding.kind == "loss":
        return next((loss.at for loss in ours.losses if loss.step == finding.step - 1), None)
    return ours.steps[finding.step - 1].at if finding.step <= len(ours.steps) else None


def _structure_findings(comparison: Comparison) -> Iterator[Finding]:
    """What differs in how the scripts are built, and what more than one rank of a script without the runtime writes."""
    ranks = comparison.recordings[1:]
    for rank, theirs in enumerate(ranks[1:] if comparison.foreign else (), start=1):
        lines = comparison.converted.output(rank, "stdout").splitlines()
        if theirs.wrote:
            what = f"{theirs.wrote[0]} is written by rank {rank}, too{_and_more(theirs.wrote)}"
            yield Finding("written", what, "each rank saves")
        if lines:
            yield Finding("prints", f"rank {rank} prints, too: {lines[0]!r}{_and_more(lines)}", "each rank prints")
        if theirs.wrote or lines:
            break
    if len(ranks) > 1 and ranks[0].synchronised:
        what = f"BatchNorm is synchronised ({ranks[0].synchronised[0]}), on GPUs: not seen on a CPU"
        yield Finding("sync_bn", what, "it then sees the whole batch; under nn.DataParallel each replica's part of it")


def _and_more(things: Sequence[str]) -> str:
    return f" (and {len(things) - 1} more)" if len(things) > 1 else ""


def _exit_and_counts(comparison: Comparison) -> Iterator[Finding]:
    codes = comparison.original.exit_code, comparison.converted.exit_code
    if codes[0] != codes[1]:
        yield Finding("exit", f"exit code {codes[0]}, converted {codes[1]}")
    for text in comparison.counts:
        yield Finding("count", text)


def _training_findings(comparison: Comparison) -> Iterator[Finding]:
    """What makes the runs train differently; of one step, the cause before its effect."""
    ours, theirs = comparison.recordings[0], comparison.recordings[1:]
    yield from evidence.data(comparison)
    yield from _start_findings(comparison)
    yield from _batch_findings(comparison)
    if comparison.first is not None:
        yield from evidence.passed(comparison, comparison.first.step)
    seen = [*evidence.models(comparison), *evidence.unused(comparison), *evidence.forwards(comparison)]
    # What is seen in an evaluation makes training differ only if that does.
    yield from (replace(each, step=None) if comparison.trained_alike else each for each in seen)
    if comparison.setting is not None:
        yield comparison.setting
    yield from evidence.states(comparison)
    if comparison.first is not None:
        yield from evidence.kept(comparison)
        yield from _draw_findings(ours, theirs[0], comparison.first.step)
    if comparison.apart is not None:
        alone = comparison.foreign and not comparison.recordings[1].wrapped
        yield _apart_finding(comparison.apart, alone)
    if comparison.first is not None:
        yield _update_finding(comparison, comparison.first)
    else:
        yield from _loss_findings(comparison)
        yield from _gradient_findings(comparison)


def _start_findings(comparison: Comparison) -> Iterator[Finding]:
    """Parameters before the first step: the ranks' among each other, then the two runs'."""
    first = {start.who: start for start in reversed(comparison.starts)}
    for start in sorted(first.values(), key=lambda start: not start.who.startswith("rank")):
        what = f"{start.who} start from other weights: {start.parameter} differs by {start.relative:.1e}"
        yield Finding("start", what, "initialised from another random draw, or loaded", start.step, start.parameter)


def _batch_findings(comparison: Comparison) -> Iterator[Finding]:
    batch = comparison.batch
    if batch is None:
        return
    made = "" if comparison.foreign else evidence.loaders(comparison, batch.iterator)
    again = None if made else _repeated(comparison.recordings)
    if again is None or (comparison.foreign and batch.iterator <= again):
        yield Finding("batch", str(batch), f"a different batch: {_why_other(comparison, batch, made)}", batch.step + 1)
    if again is not None:
        why = "a generator is seeded again, or not advanced (`set_epoch`)"
        cause = f"the shuffle of iteration {again + 1} is repeated: {why}"
        yield Finding("shuffle", str(batch), cause, batch.step + 1)


def _why_other(comparison: Comparison, batch: BatchDifference, made: str) -> str:
    """What makes a batch another one than the original's; `made`: in what its loader is made otherwise."""
    because = f" ({made})" if made else ""
    unknown = "another shuffle, another sampler, or samples that are dropped or repeated"
    given = [part for part in batch.parts if isinstance(part, list)]
    if batch.original is None or not given:
        by = "dropped" if not given else "not dropped"
        return f"the last batch of this pass is {by}, unlike the original's{because}"
    if not isinstance(batch.original, list):
        return f"{unknown}{because}"
    if all(len(part) == len(batch.original) for part in given) and any(part != given[0] for part in given):
        return f"each rank draws a whole one of its own, so N times the batch size is trained on{because}"
    ours = recording.batches_by_iterator(comparison.recordings[0]).get(batch.iterator, [])
    theirs = _unions([recording.batches_by_iterator(rank) for rank in comparison.recordings[1:]])
    passes = [[str(index) for each in side if isinstance(each, list) for index in each] for side in
              (ours, theirs.get(batch.iterator, []))]  # fmt: skip
    if len(set(passes[1])) < len(passes[1]) and len(set(passes[0])) == len(passes[0]):
        return f"padded, or drawn otherwise: {len(passes[1]) - len(set(passes[1]))} samples come twice in this pass"
    union = _union(given)
    if len(union) != len(batch.original):
        size = "larger" if len(union) > len(batch.original) else "smaller"
        return f"{size}, of batch size {len(union)}, the original's {len(batch.original)}{because}"
    if made:
        return f"another sampler, or one that is made otherwise: another order{because}"
    if sorted(passes[0]) == sorted(passes[1]):
        return "the same samples in another order: shuffled by other random numbers (another seed, a draw more or less)"
    return unknown


def _repeated(recordings: Sequence[Recording]) -> int | None:
    """The iteration over a loader whose batches the converted script has again in a later one,
    though the original hasn't."""
    ours = recording.batches_by_iterator(recordings[0])
    theirs = _unions([recording.batches_by_iterator(rank) for rank in recordings[1:]])
    for now, batches in theirs.items():
        for earlier in range(now):
            alike = len(batches) > 1 and theirs.get(earlier) == batches
            if alike and now in ours and ours.get(earlier) != ours[now]:
                return earlier
    return None


def _unions(ranks: Sequence[dict[int, list[Any]]]) -> dict[int, list[Any]]:
    """For each iteration the batches over all ranks, whether each fetched its shard or all of it."""
    return {
        iterator: [_union(parts) for parts in zip(*(rank.get(iterator, []) for rank in ranks))] for iterator in ranks[0]
    }


def _union(parts: Sequence[Any]) -> Any:
    if all(part == parts[0] for part in parts) or not all(isinstance(part, list) for part in parts):
        return parts[0]
    return [index for part in parts for index in part]


def _draw_findings(ours: Recording, theirs: Recording, until: int) -> Iterator[Finding]:
    """The first step since which a generator has drawn on one side only, or otherwise.

    A converted script seeds all generators where the original may seed but torch's: what counts is whether they move.
    """
    names = ("torch's", "Python's", "NumPy's")
    for index, name in enumerate(names):
        sides = [[step.generators[index] for step in run.steps[:until]] for run in (ours, theirs)]
        same = index == 0
        for step, (a, b) in enumerate(zip(*sides)):
            moved = [step > 0 and sums[step - 1] != sums[step] for sums in sides]
            if moved[0] != moved[1] or (same and a != b):
                what = f"{name} random numbers are not the original's any more"
                yield Finding("draw", what, "a different RNG draw: one side draws where the other doesn't", step + 1)
                return
            same = a == b


def _apart_finding(apart: StepDifference, alone: bool) -> Finding:
    what = f"{apart.parameter} differs between {apart.who} by {apart.relative:.1e}"
    cause = "something that differs between the ranks (random numbers, the time) went into it"
    if alone:
        cause = "gradients are not averaged: the model is in no DistributedDataParallel"
    return Finding("apart", what, cause, apart.step, apart.parameter)


def _update_finding(comparison: Comparison, first: StepDifference) -> Finding:
    """The first update that differs, on the same batch and from the same parameters."""
    what = f"{first.parameter} differs by {first.relative:.1e}"
    loss = _loss_before(comparison, first.step)
    factor = _gradient_factor(comparison, first)
    own = _own_losses(comparison, first.step)
    kind = "update"
    cause = "the same batch and loss, but other gradients: a reduced loss, or a layer that mixes samples"
    if loss is not None and loss > TOLERANCE:
        what += f", the loss given to backward by {loss:.1e}"
        kind = "loss"
        cause = "another loss: reduced twice, or computed on other values (random ones, or one rank's rows)"
        scale = _loss_factor(comparison, first.step)
        if scale is not None and _is_close(scale, factor):
            cause = f"the loss is {scale:.4g} times the original's: scaled, or reduced otherwise"
    elif factor is not None and not _is_close(factor, 1.0):
        kind = "scale"
        cause = f"the gradients are {factor:.4g} times the original's: scaled, clipped, or reduced twice"
    if own:
        kind, cause = ("update" if kind == "scale" else kind), _OWN
    return Finding(kind, what, cause, first.step, first.parameter, first.relative)


def _is_close(one: float, other: float | None) -> bool:
    return other is not None and math.isclose(one, other, rel_tol=_SAME_DIRECTION)


def _own_losses(comparison: Comparison, step: int) -> bool:
    """Whether the ranks give `backward` other losses in step `step`, which all know the whole batch's."""
    if comparison.foreign:
        return False
    values = [[loss.value for loss in rank.losses if loss.step == step - 1] for rank in comparison.recordings[1:]]
    return any(not math.isclose(a, b, rel_tol=_GRADIENTS) for rank in values[1:] for a, b in zip(values[0], rank))


def _gradient_factor(comparison: Comparison, first: StepDifference) -> float | None:
    """What the gradients are as a multiple of the original's, if all of them are the same one."""
    pair = [run.steps[first.step - 1].gradients for run in comparison.recordings[:2]]
    if [grad is None for grad in pair[0]] != [grad is None for grad in pair[1]]:
        return None
    ours, theirs = ([grad for grad in side if grad is not None] for side in pair)
    square = math.fsum(a * a for a in ours)
    if not square:
        return None
    factor = math.fsum(a * b for a, b in zip(ours, theirs)) / square
    left = math.sqrt(math.fsum((b - factor * a) ** 2 for a, b in zip(ours, theirs)) / square)
    return factor if left < _SAME_DIRECTION * abs(factor) else None


def _loss_before(comparison: Comparison, step: int) -> float | None:
    """The largest difference among the losses of step `step`."""
    losses = zip(comparison.recordings[0].losses, comparison.losses)
    return max((difference for loss, difference in losses if loss.step == step - 1), default=None)


def _loss_factor(comparison: Comparison, step: int) -> float | None:
    """What the converted script's losses of step `step` are as a multiple of the original's, if all are the same."""
    ours, theirs = comparison.recordings[0], recording.global_losses(comparison.recordings[1:])
    pairs = [(loss.value, other) for loss, other in zip(ours.losses, theirs) if loss.step == step - 1]
    factors = [other / value for value, other in pairs if value]
    alike = bool(factors) and all(math.isclose(factor, factors[0], rel_tol=1e-3) for factor in factors)
    return factors[0] if alike else None


def _loss_findings(comparison: Comparison) -> Iterator[Finding]:
    for number in comparison.wrong_losses[:1]:
        loss, difference = comparison.recordings[0].losses[number], comparison.losses[number]
        what = f"the loss given to backward differs by {difference:.1e}, the update doesn't"
        yield Finding("loss", what, "a loss that isn't scaled as the original's", loss.step + 1, size=difference)


def _gradient_findings(comparison: Comparison) -> Iterator[Finding]:
    """Gradients that an optimizer takes for the same, as Adam does with multiples of them."""
    ours, theirs = comparison.recordings[:2]
    for number, (one, other) in enumerate(zip(ours.steps, theirs.steps), start=1):
        least = max(_GRADIENTS, rounding.allowed_at(comparison.rounding.gradients, number - 1))
        sizes = [math.hypot(*(grad for grad in step.gradients if grad is not None)) for step in (one, other)]
        if sizes[0] and not math.isclose(*sizes, rel_tol=least):
            factor = sizes[1] / sizes[0]
            what = f"the norm of all gradients is {factor:.4g} times the original's, the update isn't"
            cause = "gradients that are scaled otherwise, or some of them, which an optimizer such as Adam hides"
            yield Finding("gradient", what, cause, number, size=abs(factor - 1))
            return
