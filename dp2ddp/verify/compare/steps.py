"""Compare parameters, step by step: the original's with the converted script's, and the ranks' among each other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dp2ddp.verify.compare.finding import TOLERANCE
from dp2ddp.verify.run.recording import Recording, Step


@dataclass(frozen=True)
class StepDifference:
    """The parameter that differs most after, or before, optimizer step `step` (from 1), and by how much, relative to
    its norm; `who` differs, where it isn't the original and the converted script."""

    step: int
    parameter: str
    relative: float
    who: str = ""


_NEGLIGIBLE = 1e-3  # of the size of most tensors


def negligible(sizes: Iterable[float]) -> float:
    """The size (root mean square) below which a tensor may hold rounding alone: a thousandth of the median.

    A bias in front of a BatchNorm has no gradient but rounding. Where it starts from zero that is all it ever holds,
    and no two ways to add up numbers agree on it.
    """
    known = [size for size in sizes if size and math.isfinite(size)]
    return _NEGLIGIBLE * statistics.median(known) if known else 0.0


def differences(ours: Recording, theirs: Recording) -> list[StepDifference]:
    """After each step that both have made."""
    return [_largest(ours, one, other, number) for number, (one, other) in enumerate(zip(ours.steps, theirs.steps), 1)]


def apart(ranks: Sequence[Recording]) -> StepDifference | None:
    """The first step after which a rank has other parameters than rank 0; None if there is none."""
    found = [
        replace(each, who=f"rank 0 and rank {rank}")
        for rank, other in enumerate(ranks[1:], start=1)
        for each in differences(ranks[0], other)
        if each.relative
    ]
    return min(found, key=lambda each: each.step, default=None)


def starts(ours: Recording, theirs: Sequence[Recording]) -> list[StepDifference]:
    """Before each optimizer's first step: the ranks that differ from rank 0, then rank 0 from the original."""
    pairs = [(f"rank 0 and rank {rank}", theirs[0], other) for rank, other in enumerate(theirs[1:], start=1)]
    pairs.append(("the original and the converted script", ours, theirs[0]))
    first: dict[int, int] = {}
    for number, at in enumerate(ours.steps, start=1):
        first.setdefault(at.optimizer, number)
    found = []
    for optimizer, number in first.items():
        for who, one, other in pairs:
            both = [run.starts.get(optimizer) for run in (one, other)]
            # That it has other parameters is told by itself.
            if both[0] and both[1] and len(both[0].slots) == len(both[1].slots):
                found.append(replace(_largest(one, both[0], both[1], number), who=who))
    return [each for each in found if each.relative > TOLERANCE]


def _largest(ours: Recording, one: Step, other: Step, number: int) -> StepDifference:
    """Parameters are matched by their order: names are for the reader, and wrapping changes them."""
    layouts = [[(slot.dtype, slot.shape) for slot in step.slots] for step in (one, other)]
    if len(one.slots) != len(other.slots):
        return StepDifference(number, "the number of parameters", math.inf)
    if layouts[0] == layouts[1] and one.sketches == other.sketches:
        return StepDifference(number, "", 0.0)
    sizes = [sketch[1] / math.sqrt(math.prod(slot.shape) or 1) for slot, sketch in zip(one.slots, one.sketches)]
    least = negligible(sizes)
    largest = StepDifference(number, "", 0.0)
    for index, slot in enumerate(one.slots):
        floor = least * math.sqrt(math.prod(slot.shape))
        same = layouts[0][index] == layouts[1][index]
        relative = _relative(one.sketches[index], other.sketches[index], floor) if same else math.inf
        if relative > largest.relative:
            largest = StepDifference(number, ours.called(slot), relative)
    return largest


def _relative(ours: Sequence[float], theirs: Sequence[float], least: float) -> float:
    """||a - b|| / ||a||, as far as the tensors' sketches tell; 0 for the same bits. `least`: what ||a|| counts as."""
    (checksum, norm, *sums), (other_checksum, other_norm, *others) = ours, theirs
    finite = math.isfinite(norm), math.isfinite(other_norm)
    if checksum == other_checksum or not any(finite):
        return 0.0
    difference = math.dist(sums, others) / math.sqrt(len(sums))
    scale = max(norm, least)
    return 0.0 if not difference else difference / scale if all(finite) and scale else math.inf
