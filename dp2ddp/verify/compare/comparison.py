"""Compare the recordings of an original and of its conversion: did they train the same model?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dp2ddp.verify.compare import clock_names, printed, rounding, saved, steps
from dp2ddp.verify.compare.finding import TOLERANCE, Finding
from dp2ddp.verify.compare.optimizer_settings import first_difference
from dp2ddp.verify.compare.printed import LineDifference
from dp2ddp.verify.compare.rounding import Rounding
from dp2ddp.verify.compare.saved import FileDifference, Hiding
from dp2ddp.verify.compare.steps import StepDifference
from dp2ddp.verify.run import recording
from dp2ddp.verify.run.recording import Recording
from dp2ddp.verify.run.runs import Run

_EVENTS = "events.out.tfevents"  # TensorBoard's files carry times, and the time and process in their names


@dataclass(frozen=True)
class BatchDifference:
    """A batch with other samples: its number (from 1) in that iteration over a loader, and when it was fetched.

    `parts` are the samples that the ranks fetched; None for a rank that fetched no such batch.
    """

    iterator: int
    number: int
    step: int
    original: Any
    parts: tuple[Any, ...]

    def __str__(self) -> str:
        where = f"batch {self.number} of iteration {self.iterator + 1} over a loader"
        return f"{where}: samples {_shortened(self.original)}, converted {_shortened(list(self.parts))}"


@dataclass(frozen=True)
class Comparison:
    """All that two runs have in common or not.

    Args:
        original, converted: the runs.
        steps: an entry for each optimizer step of both.
        losses: relative difference of each loss given to `backward`, over all ranks.
        lines: printed lines that differ.
        files: files that differ, and where.
        batch: the first batch with other samples; None if all have the same.
        recordings: the original's recording and those of the converted script's ranks.
        names: what of the converted run's paths has another name in the original's, for a clock gave it.
        apart: the first step after which the ranks' parameters differ among each other; None if none.
        starts: processes that start from other parameters.
        counts: what one run did more often than the other, in words.
        setting: the first setting of an optimizer that isn't the original's.
        logged: records of `logging` that differ, as lines.
        foreign: the converted script isn't made for this project's runtime: ranks may have any rows of a batch.
        rows_elsewhere: whether they have other ones than `nn.DataParallel`'s replicas.
        rounding: what rounding may do, where that was measured.
    """

    original: Run
    converted: Run
    steps: tuple[StepDifference, ...]
    losses: tuple[float, ...]
    lines: tuple[LineDifference, ...]
    files: tuple[FileDifference, ...]
    apart: StepDifference | None
    counts: tuple[str, ...]
    starts: tuple[StepDifference, ...] = ()
    batch: BatchDifference | None = None
    recordings: tuple[Recording, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    setting: Finding | None = None
    logged: tuple[LineDifference, ...] = ()
    foreign: bool = False
    rows_elsewhere: bool = False
    rounding: Rounding = field(default_factory=Rounding)

    def allowed(self, step: int) -> float:
        """The largest relative difference of parameters after step `step` (from 1) that counts as agreement."""
        return max(TOLERANCE, rounding.allowed_at(self.rounding.steps, step - 1))

    def hidden(self, name: str) -> str:
        """What of the converted run's has this name, as the original would call it."""
        return clock_names.restoring(self.names, self.converted.hide)(name)

    @property
    def worst(self) -> StepDifference:
        """The step with the largest difference."""
        return max(self.steps, key=lambda step: step.relative, default=StepDifference(0, "", 0.0))

    @property
    def first(self) -> StepDifference | None:
        """The first step whose parameters differ by more than the tolerance."""
        return next((step for step in self.steps if step.relative > self.allowed(step.step)), None)

    @property
    def trained_alike(self) -> bool:
        """Whether both trained, on the same batches, with the same losses and to the same parameters."""
        same = self.first is None and not self.counts and not (self.batch or self.setting or self.apart)
        return bool(self.steps) and same and not self.wrong_losses

    @property
    def wrong_losses(self) -> list[int]:
        """Which of the losses differ (from 0)."""
        allowed = self.rounding.losses
        return [n for n, loss in enumerate(self.losses) if loss > max(TOLERANCE, rounding.allowed_at(allowed, n))]

    @property
    def wrong_lines(self) -> list[LineDifference]:
        """The printed lines that differ by more than rounding."""
        allowed = self.rounding.lines
        return [line for line in self.lines if not line.is_rounding and line.relative > allowed.get(line.line, 0.0)]

    @property
    def wrong_files(self) -> list[FileDifference]:
        """The files that differ, and where."""
        allowed = self.rounding.files
        return [
            file
            for file in self.files
            if file.relative > max(TOLERANCE, self.rounding.largest, allowed.get((file.file, file.where), 0.0))
        ]

    @property
    def wrongly_logged(self) -> list[LineDifference]:
        """The records of `logging` that differ by more than rounding."""
        return [line for line in self.logged if not line.is_rounding]


def compare(original: Run, converted: Run, foreign: bool = False) -> Comparison:
    """Compare two finished runs.

    Args:
        original, converted: the runs.
        foreign: see `Comparison`.

    Raises:
        FileNotFoundError: a process ended before it recorded anything.
    """
    (ours,), theirs = original.recordings()[:1], converted.recordings()
    batch = _batch(ours, theirs, recording.is_same_set if foreign else recording.is_union)
    files = _outputs(original), _outputs(converted)
    names = clock_names.renamed(*files, timedelta(seconds=max(original.seconds, converted.seconds)))
    hide = original.hide, clock_names.restoring(names, converted.hide)
    return Comparison(
        original=original,
        converted=converted,
        steps=tuple(steps.differences(ours, theirs[0])),
        losses=tuple(_losses([ours], theirs)),
        lines=tuple(_lines(original, converted, hide, foreign)),
        files=tuple(_files(*files, hide)),
        apart=steps.apart(theirs),
        counts=tuple(_counts(ours, theirs[0])),
        starts=tuple(steps.starts(ours, theirs)),
        batch=batch,
        recordings=(ours, *theirs),
        names=names,
        setting=first_difference(ours, theirs[0], len(theirs), batch is None),
        foreign=foreign,
        rows_elsewhere=foreign and batch is None and _batch(ours, theirs, recording.is_union) is not None,
        logged=tuple(printed.differences(*(hide[i](_logged(run)) for i, run in enumerate((ours, theirs[0]))))),
    )


def _losses(ours: Sequence[Recording], theirs: Sequence[Recording]) -> list[float]:
    pairs = zip(recording.global_losses(ours), recording.global_losses(theirs))
    return [_relative(a, b) for a, b in pairs]


def _relative(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    difference = abs(a - b) / abs(a) if a else math.inf
    return math.inf if math.isnan(difference) else difference


def _batch(
    ours: Recording, theirs: Sequence[Recording], alike: Callable[[Any, Sequence[Any]], bool]
) -> BatchDifference | None:
    whole = recording.batches_by_iterator(ours)
    parts = [recording.batches_by_iterator(rank) for rank in theirs]
    for iterator in sorted(whole.keys() | parts[0].keys()):
        batches = zip_longest(whole.get(iterator, []), *(rank.get(iterator, []) for rank in parts))
        for number, (batch, *shards) in enumerate(batches, start=1):
            if not alike(batch, shards):
                taken = [[each.step for each in run.batches if each.iterator == iterator] for run in (ours, theirs[0])]
                step = max((steps[min(number, len(steps)) - 1] for steps in taken if steps), default=0)
                return BatchDifference(iterator, number, step, batch, tuple(shards))
    return None


def _shortened(indices: Any) -> str:
    text = str(indices)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _lines(one: Run, other: Run, hide: Hiding, foreign: bool) -> list[LineDifference]:
    found = list(printed.differences(hide[0](one.stdout), hide[1](other.stdout)))
    if foreign:  # that others print is told by itself
        return found
    for rank in range(1, len(other.exit_codes)):  # a line is printed once, so every other rank is silent
        found += printed.differences("", other.output(rank, "stdout"))
    return found


def _logged(run: Recording) -> str:
    return "".join(f"{text}\n" for text in run.logged)


def _outputs(run: Run) -> dict[str, Path]:
    return {name: path for name, path in run.files().items() if _EVENTS not in name}


def _files(one: Mapping[str, Path], other: Mapping[str, Path], hide: Hiding) -> Iterator[FileDifference]:
    theirs = {hide[1](name): path for name, path in other.items()}
    for name in sorted(one.keys() | theirs.keys()):
        if name in one and name in theirs:
            yield from saved.differences(name, one[name], theirs[name], hide)
        else:
            yield FileDifference(name, f"only the {'original' if name in one else 'converted'}'s", math.inf)


def _counts(ours: Recording, theirs: Recording) -> list[str]:
    pairs = {
        "optimizer steps": (len(ours.steps), len(theirs.steps)),
        "calls of backward": (len(ours.losses), len(theirs.losses)),
    }
    found = [f"{a} {what}, converted {b}" for what, (a, b) in pairs.items() if a != b]
    scales = next(((i, a, b) for i, (a, b) in enumerate(zip(ours.scales, theirs.scales)) if a != b), None)
    if scales is not None:
        number, a, b = scales
        found.append(f"the scale of a GradScaler is {a:g} after update {number + 1}, converted {b:g}")
    if ours.mixed != theirs.mixed:
        found.append(f"autocast to {ours.mixed or 'nothing'}, converted to {theirs.mixed or 'nothing'}")
    return found
