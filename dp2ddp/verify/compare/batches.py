"""Which samples make which batch: the ranks' rows together must be the original's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from dp2ddp.verify.compare.finding import Finding, shown
from dp2ddp.verify.run import recording
from dp2ddp.verify.run.recording import Recording

_OF_THE_DATA = ("samples", "rows of the data set")


def differences(ours: Recording, ranks: Sequence[Recording], *, any_order: bool = False) -> Iterator[Finding]:
    """The first iteration over other data, the first batch with other samples, and a shuffle that is repeated.

    Args:
        any_order: ranks may have any rows of a batch.
    """
    if not any_order:
        yield from _other_data(ours, ranks[0])
    whole, parts = recording.batches_by_iterator(ours), [recording.batches_by_iterator(rank) for rank in ranks]
    alike = recording.is_same_set if any_order else recording.is_union
    found = next(_wrong(whole, parts, alike), None)
    if found is None:
        return
    iteration, number, batch, shards = found
    taken = [[each for each in run.batches if each.iterator == iteration] for run in (ours, ranks[0])]
    at = next(side[number - 1] for side in taken if len(side) >= number)
    what = f"batch {number} of iteration {iteration + 1} over a loader: samples {shown(batch)}"
    what += f", converted {shown(list(shards))}"
    made = "" if any_order else _made_otherwise(ours, ranks[0], iteration)
    passes = [_samples(whole.get(iteration, [])), _samples(_unions(parts).get(iteration, []))]
    again = None if made else _repeated(whole, _unions(parts))
    line = at.at if at in ours.batches else None
    if again is None or (any_order and iteration <= again):
        yield Finding("batch", what, made or _cause(batch, shards, *passes), at.step + 1, at=line)
    if again is not None:
        cause = (
            f"the shuffle of iteration {again + 1} is repeated: a generator is seeded again, or `set_epoch` left out"
        )
        yield Finding("shuffle", what, cause, at.step + 1, at=line)


def _other_data(ours: Recording, theirs: Recording) -> Iterator[Finding]:
    for iteration, told in sorted(ours.loaders.items()):
        other = theirs.loaders.get(iteration, told)
        name = next((name for name in _OF_THE_DATA if told[name] != other[name]), None)
        if name is not None and told["data set"] == other["data set"]:
            numbers = f": {told[name]}, converted {other[name]}" if name == "samples" else ""
            step = next((each.step for each in ours.batches if each.iterator == iteration), len(ours.steps)) + 1
            yield Finding("batch", f"iteration {iteration + 1} over a loader has other {name}{numbers}", "", step)
            return


def _wrong(whole: Any, parts: Any, alike: Any) -> Iterator[tuple[int, int, Any, tuple[Any, ...]]]:
    """Each batch with other samples: iteration (from 0), number (from 1), the original's, the ranks'."""
    for iteration in sorted(whole.keys() | parts[0].keys()):
        rows = zip_longest(whole.get(iteration, []), *(rank.get(iteration, []) for rank in parts))
        for number, (batch, *shards) in enumerate(rows, start=1):
            if not alike(batch, shards):
                yield iteration, number, batch, tuple(shards)


def _made_otherwise(ours: Recording, theirs: Recording, iteration: int) -> str:
    """In what an iteration's loader is made otherwise, in words; empty if in nothing."""
    told, other = (run.loaders.get(iteration, {}) for run in (ours, theirs))
    found = [f"{name} {told[name]}, converted {other[name]}" for name in told if other and told[name] != other[name]]
    return f"the loader is made otherwise: {', '.join(found)}" if found else ""


def _cause(batch: Any, shards: Sequence[Any], ours: list[str], theirs: list[str]) -> str:
    given = [part for part in shards if isinstance(part, list)]
    if batch is None or not given:
        return f"this pass has {'fewer' if batch is not None else 'more'} batches than the original's"
    if all(len(part) == len(batch) for part in given) and any(part != given[0] for part in given):
        return "each rank draws a whole one of its own, so N times the batch size is trained on"
    twice = len(theirs) - len(set(theirs))
    if twice and len(set(ours)) == len(ours):
        return f"{twice} samples come twice in this pass: it is padded, or drawn otherwise"
    if sorted(ours) == sorted(theirs):
        return "the same samples in another order: shuffled by other random numbers"
    return ""


def _repeated(ours: Any, theirs: Any) -> int | None:
    """The iteration over a loader whose batches the converted script has again in a later one, the original not."""
    for now, batches in theirs.items():
        for earlier in range(now):
            alike = len(batches) > 1 and theirs.get(earlier) == batches
            if alike and now in ours and ours.get(earlier) != ours[now]:
                return earlier
    return None


def _samples(batches: Sequence[Any]) -> list[str]:
    return [str(index) for batch in batches if isinstance(batch, list) for index in batch]


def _unions(ranks: Sequence[dict[int, list[Any]]]) -> dict[int, list[Any]]:
    """For each iteration the batches over all ranks, whether each fetched its shard or all of it."""
    return {
        iterator: [_union(parts) for parts in zip(*(rank.get(iterator, []) for rank in ranks))] for iterator in ranks[0]
    }


def _union(parts: Sequence[Any]) -> Any:
    if all(part == parts[0] for part in parts) or not all(isinstance(part, list) for part in parts):
        return parts[0]
    return [index for part in parts for index in part]
