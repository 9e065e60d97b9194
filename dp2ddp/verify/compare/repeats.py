"""Final numbers over several seeds, for scripts whose two versions can't draw the same random numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dp2ddp.verify.compare import printed
from dp2ddp.verify.compare.causes import Finding

ERRORS = 4.0  # standard errors that the means may be apart; with 3 seeds 4 of them are rarely chance
LEAST = 0.01  # a relative difference of means that is never a mistake


@dataclass(frozen=True)
class FinalNumber:
    """A number of the last line printed, over all seeds, and the text in front of it."""

    name: str
    original: tuple[float, ...]
    converted: tuple[float, ...]

    @property
    def means(self) -> tuple[float, float]:
        """Of the original and of the converted script."""
        return statistics.fmean(self.original), statistics.fmean(self.converted)

    @property
    def spreads(self) -> tuple[float, float]:
        """Standard deviations over the seeds."""
        return statistics.stdev(self.original), statistics.stdev(self.converted)

    @property
    def agrees(self) -> bool:
        """Whether the means are as near as the spread lets one expect."""
        one, other = self.means
        error = math.sqrt(sum(spread**2 for spread in self.spreads) / len(self.original))
        return abs(one - other) <= max(ERRORS * error, LEAST * abs(one))


@dataclass(frozen=True)
class Repeats:
    """The final numbers of both scripts; `problem` says why there are none."""

    seeds: int
    numbers: tuple[FinalNumber, ...] = ()
    problem: str = ""

    def findings(self) -> list[Finding]:
        """The numbers whose means are too far apart."""
        if self.problem:
            return [Finding("printed", self.problem)]
        return [
            Finding(
                "printed",
                f"over {self.seeds} seeds {number.name!r} is {number.means[0]:.4g} (spread {number.spreads[0]:.2g}), "
                f"converted {number.means[1]:.4g} (spread {number.spreads[1]:.2g})",
                "more than the seeds explain",
            )
            for number in self.numbers
            if not number.agrees
        ]


def judge(outputs: Sequence[tuple[str, str]]) -> Repeats:
    """Compare the last printed numbers of several runs.

    Args:
        outputs: standard output of the original and of the converted script, for each seed.
    """
    lines = [[_last(text) for text in pair] for pair in outputs]
    texts = {tuple(printed.NUMBER.split(line)) for pair in lines for line in pair}
    if len(texts) != 1:
        return Repeats(len(outputs), problem=f"the last lines with numbers are not alike: {sorted(lines)[0]}")
    (words,) = texts
    if len(words) == 1:
        return Repeats(len(outputs), problem="neither script prints a number to compare")
    numbers = [[printed.numbers(line) for line in pair] for pair in lines]
    columns = range(len(words) - 1)
    finals = [
        FinalNumber(
            words[column].strip() or f"number {column + 1}",
            tuple(pair[0][column] for pair in numbers),
            tuple(pair[1][column] for pair in numbers),
        )
        for column in columns
    ]
    return Repeats(len(outputs), tuple(finals))


def _last(text: str) -> str:
    """The last line that has a number other than a time."""
    lines = [printed.without_times(line) for line in text.splitlines()]
    return next((line for line in reversed(lines) if printed.NUMBER.search(line)), "")
