"""Compare parameters, step by step: the original's with the converted script's, and the ranks' among each other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dp2ddp.verify.compare.finding import TOLERANCE
from dp2ddp.verify.run.recording import Event, Recording


@dataclass(frozen=True)
class StepDifference:
    """The parameter that differs most after, or before, optimizer step `step` (from 1), and by how much, relative to
    its norm; `who` differs, where it isn't the original and the converted script."""

    step: int
    parameter: str
    relative: float
    who: str = ""


_NEGLIGIBLE = 1e-3  # of the size of most tensors
_ROUNDING = 1e-5  # of what is negligible


def negligible(sizes: Iterable[float]) -> float:
    """The size (root mean square) below which a tensor may hold rounding alone: a thousandth of the median.

    A bias in front of a BatchNorm has no gradient but rounding. Where it starts from zero that is all it ever holds,
    and no two ways to add up numbers agree on it.
    """
    known = [size for size in sizes if size and math.isfinite(size)]
    return _NEGLIGIBLE * statistics.median(known) if known else 0.0


def differences(ours: Recording, theirs: Recording) -> list[StepDifference]:
    """After each step that both have made."""
    return [_largest(*pair, number) for number, pair in enumerate(zip(ours.steps, theirs.steps), 1)]


def apart(ranks: Sequence[Recording]) -> StepDifference | None:
    """The first step after which a rank has other parameters than rank 0; None if there is none."""
    found = [
        replace(each, who=f"rank 0 and rank {rank}")
        for rank, other in enumerate(ranks[1:], start=1)
        for each in differences(ranks[0], other)
        if each.relative
    ]
    return min(found, key=lambda each: each.step, default=None)


def starts(ours: Recording, ranks: Sequence[Recording]) -> StepDifference | None:
    """Before the optimizers' first steps: the first rank that differs from rank 0, or rank 0 from the original."""
    pairs = [(f"rank 0 and rank {rank}", ranks[0], other) for rank, other in enumerate(ranks[1:], start=1)]
    pairs.append(("the original and the converted script", ours, ranks[0]))
    for optimizer in ours.starts:
        for who, *both in pairs:
            begins = [run.starts[optimizer] for run in both if optimizer in run.starts]
            # That it has other parameters is told by itself.
            if len(begins) == 2 and len(begins[0].slots) == len(begins[1].slots):
                found = _largest(begins[0], begins[1], begins[0].step + 1)
                if found.relative > TOLERANCE:
                    return replace(found, who=who)
    return None


def _largest(one: Event, other: Event, number: int) -> StepDifference:
    """Parameters are matched by their order: names are for the reader, and wrapping changes them."""
    if len(one.slots) != len(other.slots):
        return StepDifference(number, "the number of parameters", math.inf)
    same = [slot[1:] == other_slot[1:] for slot, other_slot in zip(one.slots, other.slots)]
    if all(same) and one.sketches == other.sketches:
        return StepDifference(number, "", 0.0)
    counts = [math.sqrt(math.prod(slot.shape)) for slot in one.slots]
    least = negligible(sketch[1] / (count or 1) for count, sketch in zip(counts, one.sketches))
    gradients = getattr(one, "gradients", [None] * len(counts))
    noise = _ROUNDING * negligible(each or 0.0 for each in gradients)  # which Adam makes steps of
    sizes = [
        math.inf if not is_same else 0.0 if grad and grad <= noise else _relative(ours, theirs, least * count)
        for is_same, grad, count, ours, theirs in zip(same, gradients, counts, one.sketches, other.sketches)
    ]
    worst = max(range(len(sizes)), key=sizes.__getitem__)
    return StepDifference(number, one.slots[worst].name if sizes[worst] else "", sizes[worst])


def _relative(ours: Sequence[float], theirs: Sequence[float], least: float) -> float:
    """||a - b|| / ||a||, as far as the tensors' sketches tell; 0 for the same bits. `least`: what ||a|| counts as."""
    (checksum, norm, *sums), (other_checksum, other_norm, *others) = ours, theirs
    finite = math.isfinite(norm), math.isfinite(other_norm)
    if checksum == other_checksum or not any(finite):
        return 0.0
    difference = math.dist(sums, others) / math.sqrt(len(sums))
    scale = max(norm, least)
    return 0.0 if not difference else difference / scale if all(finite) and scale else math.inf
