"""What made two runs differ, where it was seen: other models, modes, samples, numbers of batches before a step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from dp2ddp.verify.compare.comparison import Comparison
from dp2ddp.verify.compare.finding import Finding
from dp2ddp.verify.run.recording import Forward, Recording, Wrapped

_ROUNDING = 1e-4  # of sums of numbers, before a step that differs


def models(comparison: Comparison) -> Iterator[Finding]:
    """Models that the original wraps, and the converted script doesn't; and those that it leaves in DataParallel."""
    ours, *theirs = comparison.recordings
    for each in theirs[0].left if theirs else ():
        at = f" ({each.at})" if each.at else ""
        what = f"a model ({each.model}) still is in an nn.DataParallel in the converted script{at}"
        cause = "every rank runs it on whole batches: `ddp.wrap_model` was forgotten there"
        yield Finding("left", what, cause, each.step + 1)
    # (The original's are known where it has split a batch with them.)
    if not theirs or not ours.wrapped or theirs[0].left:
        return
    missing, other = _without(ours.wrapped, theirs[0].wrapped), _without(theirs[0].wrapped, ours.wrapped)
    if missing:
        names = [", ".join(each.model for each in side) or "none" for side in (ours.wrapped, theirs[0].wrapped)]
        what = f"models that are wrapped: {names[0]}; converted: {names[1]}"
        cause = f"{missing[0].model} isn't wrapped: every rank runs it on the whole batch, which is not split"
        yield Finding("unwrapped", what, cause, missing[0].step + 1)
    elif other:
        what = f"{other[0].model} is wrapped, which it isn't in the original"
        cause = "its batch is split there, and in the original it is not split"
        yield Finding("unwrapped", what, cause, other[0].step + 1)


def _without(some: Sequence[Wrapped], others: Sequence[Wrapped]) -> list[Wrapped]:
    """The first of `some`, of each class those that aren't among `others`."""
    left = Counter(each.model for each in others)
    found = []
    for each in some:
        left[each.model] -= 1
        found += [each] if left[each.model] < 0 else []
    return found


def unused(comparison: Comparison) -> Iterator[Finding]:
    """A model whose wrapper isn't called as often as in the original, before the first step that differs."""
    ours, theirs = comparison.recordings[:2]
    if comparison.first is None:
        return
    calls = [Counter((each.step, each.model) for each in run.forwards if not each.replica) for run in (ours, theirs)]
    for step, model in sorted(calls[0]):
        often = [counts[step, model] for counts in calls]
        if step < comparison.first.step and often[0] > often[1]:
            what = f"the wrapped {model} is called {_times_in_words(often[1])} before step {step + 1}, in the original"
            cause = "it is called past its wrapper (`.module`): on each rank's own rows, or on all of a batch"
            yield Finding("unwrapped", f"{what} {_times_in_words(often[0])}", cause, comparison.first.step)
            return


def data(comparison: Comparison) -> Iterator[Finding]:
    """Loaders over other data: another split of it, another size."""
    ours, theirs = comparison.recordings[:2]
    if comparison.foreign:
        return
    for iteration, told in sorted(ours.loaders.items()):
        other = theirs.loaders.get(iteration, told)
        for name in ("samples", "rows of the data set"):
            if told[name] != other[name] and told["data set"] == other["data set"]:
                numbers = f": {told[name]}, converted {other[name]}" if name == "samples" else ""
                what = f"iteration {iteration + 1} over a loader has other {name}{numbers}"
                yield Finding(
                    "data", what, "the data are split otherwise, or other data are loaded", _begins(ours, iteration)
                )
                return


def _begins(run: Recording, iteration: int) -> int:
    return next((each.step for each in run.batches if each.iterator == iteration), len(run.steps)) + 1


def loaders(comparison: Comparison, iteration: int) -> str:
    """In what an iteration's loader is made otherwise, in words; empty if in nothing."""
    told, other = (run.loaders.get(iteration, {}) for run in comparison.recordings[:2])
    found = [f"{name} {told[name]}, converted {other.get(name)}" for name in told if told[name] != other.get(name)]
    return ", ".join(found) if other else ""


def passed(comparison: Comparison, until: int) -> Iterator[Finding]:
    """The first step before which one run takes more batches than the other, or calls `backward` more often."""
    ours, theirs = comparison.recordings[:2]
    backwards = [Counter(loss.step for loss in run.losses) for run in (ours, theirs)]
    taken = [_by_step(run) for run in (ours, theirs)]
    for step in range(until):
        calls = [counts[step] for counts in backwards]
        batches = [side.get(step, []) for side in taken]
        if calls[0] != calls[1]:
            original, converted = map(_times_in_words, calls)
            what = f"backward is called {converted} before this step, in the original {original}"
            more = "a step is left out, or gradients accumulate over more batches"
            fewer = "a step more than the original's, or gradients accumulate over fewer batches"
            yield Finding("passed", what, more if calls[1] > calls[0] else fewer, step + 1)
            return
        if len(batches[0]) != len(batches[1]) and not comparison.foreign:  # frameworks take them ahead
            what = f"{len(batches[1])} batches are taken before this step, in the original {len(batches[0])}"
            which = next((b for a, b in zip_longest(*batches) if a != b), None) or batches[0][-1]
            cause = f"batch {which[1]} of iteration {which[0] + 1} over a loader is taken on one side only"
            if len(batches[1]) > len(batches[0]):
                number, iteration = batches[1][0][1], batches[1][0][0]
                cause = f"batch {number} of iteration {iteration + 1} over a loader is skipped: no step follows it"
            yield Finding("passed", what, cause, step + 1)
            return


def _by_step(run: Recording) -> Mapping[int, list[tuple[int, int]]]:
    """The batches taken before each step: their iteration, and number in it."""
    numbers: Counter[int] = Counter()
    found: dict[int, list[tuple[int, int]]] = {}
    for each in run.batches:
        numbers[each.iterator] += 1
        found.setdefault(each.step, []).append((each.iterator, numbers[each.iterator]))
    return found


def _times_in_words(count: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(count, f"{count} times")


def kept(comparison: Comparison) -> Iterator[Finding]:
    """The first `backward` that adds to gradients on one side, and not on the other."""
    ours, theirs = comparison.recordings[:2]
    for number, (one, other) in enumerate(zip(ours.losses, theirs.losses), start=1):
        if one.step != other.step:
            return
        if one.kept != other.kept:
            more = len(other.kept) > len(one.kept)
            which = next(iter(set(one.kept) ^ set(other.kept))) + 1
            still = "still has gradients" if more else "has no gradients, unlike the original's"
            cause = (
                "`zero_grad` is left out, so that gradients add up"
                if more
                else "gradients are cleared, not accumulated"
            )
            yield Finding("kept", f"before call {number} of backward, optimizer {which} {still}", cause, one.step + 1)
            return


def states(comparison: Comparison) -> Iterator[Finding]:
    """What an optimizer holds of earlier steps when it begins: momentum, from a checkpoint."""
    ours, theirs = comparison.recordings[:2]
    for optimizer, start in ours.starts.items():
        other = theirs.starts.get(optimizer)
        if other is None or _largest_relative(start.momentum, other.momentum) <= _ROUNDING:
            continue
        step = next((number for number, at in enumerate(ours.steps, start=1) if at.optimizer == optimizer), None)
        none = "" if other.momentum else ": it has none"
        what = f"optimizer {optimizer + 1} begins with another state (momentum) than the original's{none}"
        yield Finding("state", what, "a checkpoint that one side loads, and the other doesn't", step)


def forwards(comparison: Comparison) -> Iterator[Finding]:
    """The first call of a wrapped model in another mode; on other inputs; with other running statistics.

    Calls are told apart by the model's class, the replica, and how many calls of that class came before.
    """
    ours, *theirs = comparison.recordings
    there = {key: each for rank in theirs for key, each in _calls(rank)}
    pairs = [(key, each, there[key]) for key, each in _calls(ours) if key in there]
    first: set[str] = set()
    for number, ((model, *_), one, other) in enumerate(pairs):
        if one.step != other.step:  # they aren't the same calls any more
            return
        found = _call(comparison, one, other)
        if found is None:
            continue
        kind, what, cause, size = found
        # What a model is given by another one is that one's.
        before = {each.model for _, each, _ in pairs[:number] if each.step == one.step}
        if kind in first or (kind == "input" and before - {model}):
            continue
        first.add(kind)
        yield Finding(kind, what, cause, one.step + 1, size=size)


def _calls(run: Recording) -> Iterator[tuple[tuple[str, int, int], Forward]]:
    """Each call's model, replica and number.

    A batch of too few rows leaves the original's last replicas out, where a rank goes through the call all the same:
    so it is the calls of the model that are counted, by the process's first replica, and not each replica's.
    """
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    for each in run.forwards:
        counts[each.model] += each.replica == first.setdefault(each.model, each.replica)
        yield (each.model, each.replica, counts[each.model]), each


def _call(comparison: Comparison, one: Forward, other: Forward) -> tuple[str, str, str, float] | None:
    """Kind, words, cause and size of what differs in a call."""
    if one.modes != other.modes:
        modes = ["training" if each.modes[0] else "evaluation" for each in (one, other)]
        if modes[0] == modes[1]:
            modes = [f"{each.modes[1]} modules in training" for each in (one, other)]
        what = f"{one.model} runs in {modes[1]} mode, the original's in {modes[0]} mode"
        missing = "eval" if modes[0] == "evaluation" else "train"
        return "mode", what, f"`model.{missing}()` is left out there: dropout and BatchNorm do something else", math.inf
    if comparison.foreign:  # ranks may have other rows
        return None
    least = max(_ROUNDING, comparison.allowed(one.step + 1))
    size = sums_apart(one.given, other.given)
    if size > least:
        what = f"what {one.model} is given is not the original's (replica {one.replica})"
        return "input", what, "other samples: augmented, transformed or drawn otherwise", size
    size = _largest_relative(one.buffers, other.buffers)
    if size > least:
        which = max(range(len(one.buffers)), key=lambda index: _relative(one.buffers[index], other.buffers[index]))
        names = next((each.buffers for each in comparison.recordings[0].wrapped if each.model == one.model), ())
        name = names[which] if len(names) == len(one.buffers) else "a buffer"
        where = f"on rank {one.replica}, before step {one.step + 1}" if one.replica else f"before step {one.step + 1}"
        what = f"{one.model} runs with another {name} {where}"
        return "buffer", what, "running statistics (BatchNorm) that are updated otherwise, or changed on a rank", size
    return None


def sums_apart(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """The largest difference of tensors' sums (`state.sums`), relative to the norms."""
    if [*map(len, ours)] != [*map(len, theirs)]:
        return math.inf
    found = [abs(a - b) / max(one[0], other[0]) for one, other in zip(ours, theirs) for a, b in zip(one, other)
             if a != b and not (math.isnan(a) and math.isnan(b))]  # fmt: skip
    return max((math.inf if math.isnan(each) else each for each in found), default=0.0)


def _largest_relative(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The largest relative difference."""
    if len(ours) != len(theirs):
        return math.inf
    return max(map(_relative, ours, theirs), default=0.0)


def _relative(a: Any, b: Any) -> float:
    if a == b or (a != a and b != b):
        return 0.0
    return float(abs(a - b) / max(abs(a), abs(b)))
