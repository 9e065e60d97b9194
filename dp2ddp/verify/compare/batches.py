"""Which samples make which batch: the ranks' rows together must be the original's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from dp2ddp.verify.compare.finding import Finding, shown
from dp2ddp.verify.run.recording import Recording


def differences(ours: Recording, ranks: Sequence[Recording], *, any_order: bool = False) -> Iterator[Finding]:
    """The first batch with other samples (in `any_order`: than those of its rows), and a shuffle that is repeated."""
    place = next(_wrong(ours, ranks, any_order), None)
    if place is None:
        return
    iteration, number = place
    whole, *parts = (_indices(run, place) for run in (ours, *ranks))
    what = f"batch {number + 1} of iteration {iteration + 1} over a loader: samples {shown(whole)}"
    what += f", converted {shown(parts)}"
    step = (ours if place in ours.batches else ranks[0]).batches[place].step + 1
    line = ours.batches[place].at if place in ours.batches else None
    made = "" if any_order else _made_otherwise(ours, ranks[0], iteration)
    again = None if made else _repeated(ours, ranks[0])
    if again is None or (any_order and iteration <= again):
        yield Finding("batch", what, made or _cause(iteration, whole, parts, ours, ranks), step, at=line)
    if again is not None:
        shuffle = f"the shuffle of iteration {again + 1} is repeated"
        yield Finding(
            "shuffle", what, f"{shuffle}: a generator is seeded again, or `set_epoch` left out", step, at=line
        )


def same_rows(ours: Recording, ranks: Sequence[Recording]) -> bool:
    """Whether the ranks have the rows of each batch that `nn.DataParallel`'s replicas have."""
    return next(_wrong(ours, ranks), None) is None


def _wrong(ours: Recording, ranks: Sequence[Recording], any_order: bool = False) -> Iterator[tuple[int, int]]:
    """The places of batches with other samples."""
    for place in sorted(ours.batches.keys() | ranks[0].batches.keys()):
        whole, *parts = (_indices(run, place) for run in (ours, *ranks))
        if not is_union(whole, parts, any_order):
            yield place


def _indices(run: Recording, place: tuple[int, int]) -> Any:
    return run.batches[place].indices if place in run.batches else None


def is_union(whole: Any, parts: Sequence[Any], any_order: bool = False) -> bool:
    """Whether the ranks that fetched `parts` fetched the batch `whole`: shards in rank order, or all of it each.

    In `any_order` each may have any of its samples. A rank for which `torch.chunk` leaves none may fetch one as a
    placeholder, which doesn't count.
    """
    if all(part == whole for part in parts):
        return True
    if not whole or not all(isinstance(part, list) for part in (whole, *parts)):
        return False
    if any_order:
        return sorted(map(str, whole)) == sorted(map(str, chain.from_iterable(parts)))
    size = -(-len(whole) // len(parts))
    shards = [whole[start : start + size] for start in range(0, len(whole), size)]
    idle = parts[len(shards) :]
    return list(parts[: len(shards)]) == shards and all(len(part) <= 1 for part in idle)


def _made_otherwise(ours: Recording, theirs: Recording, iteration: int) -> str:
    """In what an iteration's loader is made otherwise, in words; empty if in nothing."""
    told, other = (run.loaders.get(iteration, {}) for run in (ours, theirs))
    found = [f"{name} {told[name]}, converted {other[name]}" for name in told if other and told[name] != other[name]]
    return f"the loader is made otherwise: {', '.join(found)}" if found else ""


def _cause(iteration: int, batch: Any, shards: Sequence[Any], ours: Recording, ranks: Sequence[Recording]) -> str:
    given = [part for part in shards if isinstance(part, list)]
    if batch is None or not given:
        return f"this pass has {'fewer' if batch is not None else 'more'} batches than the original's"
    if all(len(part) == len(batch) for part in given) and any(part != given[0] for part in given):
        return "each rank draws a whole one of its own, so N times the batch size is trained on"
    samples, *theirs = ([*chain.from_iterable(_pass(run, iteration))] for run in (ours, *ranks))
    drawn = theirs[0] if all(each == theirs[0] for each in theirs) else [*chain.from_iterable(theirs)]
    twice = len(drawn) - len({*drawn})
    if twice and len({*samples}) == len(samples):
        return f"{twice} samples come twice in this pass: it is padded, or drawn otherwise"
    if sorted(samples) == sorted(drawn):
        return "the same samples in another order: shuffled by other random numbers"
    return ""


def _pass(run: Recording, iteration: int) -> list[list[str]]:
    """The samples of an iteration's batches."""
    taken = (each.indices for place, each in run.batches.items() if place[0] == iteration)
    return [[*map(str, indices)] if isinstance(indices, list) else [] for indices in taken]


def _repeated(ours: Recording, theirs: Recording) -> int | None:
    """The iteration over a loader whose batches the converted script has again in a later one, the original not."""
    passes = {now: _pass(theirs, now) for now in sorted({place[0] for place in theirs.batches})}
    for now, batches in passes.items():
        for earlier in range(now):
            alike = len(batches) > 1 and passes.get(earlier) == batches
            if alike and _pass(ours, now) and _pass(ours, earlier) != _pass(ours, now):
                return earlier
    return None
