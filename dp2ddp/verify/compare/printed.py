"""Compare two texts line by line and number by number: output, CSV logs, JSON; which times may differ."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import zip_longest

NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?\b(?:nan|inf)\b")

_N = NUMBER.pattern
# The script's own clocks tell the same on both sides; not so dates, and what libraries measure.
_TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?|\b\d+:\d\d(?::\d\d(?:\.\d+)?)?\b"
    rf"|(?i:time|took|elapsed?|duration|eta|throughput|speed)\W{{0,3}}(?:{_N})(?:\s*\(\s*(?:{_N})\))?"
    rf"|(?:{_N})\s*(?:it/s|s/it|\w+/s(?:ec)?|sec(?:ond)?s?|min(?:ute)?s?|hours?|m?s(?:/\w+)?)(?![\w/]|\s*[-+.]?\d)"
)
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")  # `<function f at 0x7f3c...>`
_IN_DOUBLE = 1e-13  # relative: some hundred roundings


@dataclass(frozen=True)
class LineDifference:
    """A line (from 1) that is not the same in both; None where one text has ended.

    `places` is the largest difference of its numbers in units of the last printed digit; None where the text between
    the numbers differs, too. `whole` is set where the numbers that differ are integers, which rounding doesn't move;
    `relative` is the largest relative difference of the numbers.
    """

    line: int
    original: str | None
    converted: str | None
    places: float | None
    whole: bool = False
    relative: float = math.inf

    @property
    def is_rounding(self) -> bool:
        """Whether rounding alone explains it: a fraction between two last digits may fall to either side, and of a
        number in double precision with all its digits the last ones.
        """
        return self.places is not None and not self.whole and (self.places <= 1 or self.relative <= _IN_DOUBLE)

    @property
    def size(self) -> float:
        """The largest relative difference of the numbers; infinite for what rounding doesn't move."""
        return math.inf if self.places is None or self.whole else self.relative


def differences(original: str, converted: str) -> Iterator[LineDifference]:
    """The lines in which the texts differ."""
    pairs = zip_longest(original.splitlines(), converted.splitlines())
    for line, (ours, theirs) in enumerate(pairs, start=1):
        if ours != theirs and (ours is None or theirs is None or without_times(ours) != without_times(theirs)):
            yield _difference(line, ours, theirs)


def without_times(line: str) -> str:
    """`line` with the numbers that only tell how long something took, when, and where in memory it is, left out."""
    rest = _TIMES.sub(lambda match: "".join(NUMBER.sub("#", match[0]).split()), _ADDRESS.sub("at #", line))
    return line if rest == line else re.sub(" +", " ", rest)  # lines are filled up with blanks behind a short one


def _difference(line: int, ours: str | None, theirs: str | None) -> LineDifference:
    texts = without_times(ours or ""), without_times(theirs or "")
    pairs = [(Decimal(a), Decimal(b)) for a, b in zip(*map(NUMBER.findall, texts)) if a != b]
    is_alike = ours is not None and theirs is not None and NUMBER.split(texts[0]) == NUMBER.split(texts[1])
    if not is_alike or not all(a.is_finite() and b.is_finite() for a, b in pairs):
        return LineDifference(line, ours, theirs, None)
    # In units of the last digit of the one with fewer.
    units = [Decimal(1).scaleb(max(int(each.as_tuple().exponent) for each in pair)) for pair in pairs]
    places = max((float(abs(a - b) / unit) for (a, b), unit in zip(pairs, units)), default=0.0)
    whole = any(a.as_tuple().exponent == b.as_tuple().exponent == 0 for a, b in pairs)
    relative = max((float(abs(a - b) / abs(a)) if a else math.inf for a, b in pairs), default=0.0)
    return LineDifference(line, ours, theirs, places, whole, relative)
