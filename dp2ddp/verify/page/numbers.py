"""The numbers that both sides printed, line by line of the script: as curves, and as a table of those printed once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from dp2ddp.verify.compare import printed

_LONGEST = 48  # characters of a name


@dataclass
class Numbers:
    """A number in a line of a kind, each time that it was printed.

    Attributes:
        name: the words in front of it.
        sides: the original's values, and the converted script's.
    """

    name: str
    sides: tuple[list[float | None], list[float | None]] = field(default_factory=lambda: ([], []))

    @property
    def single(self) -> bool:
        """Whether it was printed once only."""
        return max(map(len, self.sides)) < 2

    @property
    def agree(self) -> bool:
        """Whether both sides printed the same."""
        return self.sides[0] == self.sides[1]

    @property
    def counts(self) -> bool:
        """Whether it only counts something (epochs, batches), alike on both sides."""
        ours = self.sides[0]
        whole = all(value is not None and value == int(value) for value in ours)
        steps = {b - a for a, b in zip(ours, ours[1:]) if a is not None and b is not None}
        return self.agree and whole and len(steps) <= 1 and not self.single


def of(original: str, converted: str) -> Sequence[Numbers]:
    """All numbers of two outputs but times and what only counts, in the order in which they come."""
    found: dict[tuple[tuple[str, ...], int], Numbers] = {}
    for side, text in enumerate((original, converted)):
        for line in text.splitlines():
            words = printed.words(line)
            values = printed.numbers(printed.without_times(line))
            for place, value in enumerate(values):
                numbers = found.setdefault((words, place), Numbers(_name(words, place)))
                numbers.sides[side].append(value if math.isfinite(value) else None)
    return [numbers for numbers in found.values() if not numbers.counts]


def _name(words: Sequence[str], place: int) -> str:
    """The words in front of a number, behind it in a line that begins with one and ends with words; else the last ones
    before it."""
    behind = not _letters(words[0]) and _letters(words[-1])
    for text in (*([words[place + 1]] if behind else []), words[place], *reversed(words[:place])):
        name = text.strip(" \t:=,;()[]{}|/-#*>%")
        if _letters(name):
            return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"
    return f"number {place + 1}"


def _letters(text: str) -> bool:
    return any(letter.isalpha() for letter in text)
