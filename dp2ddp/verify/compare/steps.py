"""Compare parameters step by step, while the runs go on or afterwards; what was compared needs no room any more."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import torch

from dp2ddp.verify.compare import saved
from dp2ddp.verify.compare.saved import relative_difference
from dp2ddp.verify.run.recording import Reader, Recording, Step

TOLERANCE = 1e-6


@dataclass(frozen=True)
class StepDifference:
    """The parameter that differs most after, or before, optimizer step `step` (from 1), and by how much, relative to
    its norm; `who` differs, where it isn't the original and the converted script."""

    step: int
    parameter: str
    relative: float
    who: str = ""

    def __str__(self) -> str:
        return f"step {self.step}: {self.parameter} differs" + (f" between {self.who}" if self.who else "")


class Steps:
    """Walks through the steps of several processes, side by side.

    Args:
        folders: of the original's recording and of those of the converted script's ranks.
        keep: leave the parameters on the disk; else those that were compared are removed.
    """

    def __init__(self, folders: Sequence[Path], keep: bool = True) -> None:
        self.differences: list[StepDifference] = []
        self.apart: StepDifference | None = None
        self.starts: list[StepDifference] = []
        self._readers = [Reader(folder) for folder in folders]
        self._keep = keep
        self._previous: dict[tuple[int, int], Step] = {}  # by process and optimizer

    @property
    def recordings(self) -> list[Recording]:
        """What was read so far: the original's recording and the ranks'."""
        return [reader.recording for reader in self._readers]

    @property
    def made(self) -> list[int]:
        """How many steps each process has made so far."""
        return [len(recording.steps) for recording in self.recordings]

    def look(self, ended: Collection[int] = ()) -> None:
        """Compare the steps that all processes have made by now.

        Args:
            ended: the processes that have ended, counted as `folders`: what others do longer is compared with nothing.
        """
        for reader in self._readers:
            with suppress(FileNotFoundError):  # not yet
                reader.more()
        while len(self.differences) < min(self.made):
            self._compare(len(self.differences))
        if ended and not self._keep:
            least = min(self.made[process] for process in ended)
            for recording in self.recordings:
                for at in recording.steps[least:]:
                    recording.path(at).unlink(missing_ok=True)

    def finish(self) -> None:
        """Compare what is left when all processes have ended.

        Raises:
            FileNotFoundError: one has recorded nothing.
        """
        for reader in self._readers:
            reader.more()
        self.look(ended=range(len(self._readers)))

    def _compare(self, step: int) -> None:
        ours, *theirs = self.recordings
        optimizer = ours.steps[step].optimizer
        if (0, optimizer) not in self._previous:
            self._compare_starts(optimizer, step)
        difference = _difference(ours, theirs[0], step)
        self.differences.append(difference)
        for rank, other in enumerate(theirs[1:], start=1):
            if self.apart is None:
                apart = _difference(theirs[0], other, step)
                if apart.relative:
                    self.apart = replace(apart, who=f"rank 0 and rank {rank}")
        for process, recording in enumerate(self.recordings):
            at = recording.steps[step]
            before = self._previous.get((process, at.optimizer))
            self._previous[process, at.optimizer] = at
            if before is not None and not self._keep:
                recording.path(before).unlink(missing_ok=True)

    def _compare_starts(self, optimizer: int, step: int) -> None:
        """The parameters before an optimizer's first step: the ranks' among each other, then the two runs'."""
        ours, *theirs = self.recordings
        pairs = [(f"rank 0 and rank {r}", theirs[0], rank) for r, rank in enumerate(theirs[1:], start=1)]
        for who, one, other in [*pairs, ("the original and the converted script", ours, theirs[0])]:
            if optimizer in one.starts and optimizer in other.starts:
                found = _of_starts(one, other, optimizer)
                self.starts += [StepDifference(step + 1, name, size, who) for name, size in found]
        for process, recording in enumerate(self.recordings):
            if optimizer in recording.starts:
                self._previous[process, optimizer] = recording.starts[optimizer]


def _of_starts(one: Recording, other: Recording, optimizer: int) -> Iterator[tuple[str, float]]:
    start = one.starts[optimizer]
    if len(start.slots) != len(other.starts[optimizer].slots):  # that it has other parameters is told by itself
        return
    least = saved.negligible(value for _, value in one.values(start))
    for (name, a), (_, b) in zip(one.values(start), other.values(other.starts[optimizer])):
        size = relative_difference(a, b, least)
        if size > TOLERANCE:
            yield name, size
            return


def _difference(ours: Recording, theirs: Recording, step: int) -> StepDifference:
    """Parameters are matched by their order: names are for the reader, and wrapping changes them."""
    a, b = ours.steps[step], theirs.steps[step]
    if [(slot.dtype, slot.shape) for slot in a.slots] == [(slot.dtype, slot.shape) for slot in b.slots] and torch.equal(
        ours.raw(a), theirs.raw(b)
    ):
        return StepDifference(step + 1, "", 0.0)
    return _largest(step + 1, list(zip_longest(ours.values(a), theirs.values(b))))


_Pair = tuple["tuple[str, torch.Tensor] | None", "tuple[str, torch.Tensor] | None"]


def _largest(step: int, pairs: Sequence[_Pair]) -> StepDifference:
    both = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
    if len(both) < len(pairs):
        return StepDifference(step, "the number of parameters", math.inf)
    largest = StepDifference(step, "", 0.0)
    differing = [(name, a, b) for (name, a), (_, b) in both if not torch.equal(a, b)]
    least = saved.negligible(a for (_, a), _ in both) if differing else 0.0
    for name, a, b in differing:
        relative = relative_difference(a, b, least)
        if relative > largest.relative:
            largest = StepDifference(step, name, relative)
    return largest
