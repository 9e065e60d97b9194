"""Compare two texts line by line and number by number: printed output, CSV logs, JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import zip_longest

NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?\b(?:nan|inf)\b")


@dataclass(frozen=True)
class LineDifference:
    """A line (from 1) that is not the same in both; None where one text has ended.

    `places` is the largest difference of its numbers in units of the last printed digit; None where the text between
    the numbers differs, too.
    """

    line: int
    original: str | None
    converted: str | None
    places: float | None


def numbers(text: str) -> list[float]:
    """All numbers in `text`."""
    return [float(match) for match in NUMBER.findall(text)]


def differences(original: str, converted: str) -> Iterator[LineDifference]:
    """The lines in which the texts differ."""
    pairs = zip_longest(original.splitlines(), converted.splitlines())
    for line, (ours, theirs) in enumerate(pairs, start=1):
        if ours != theirs:
            yield LineDifference(line, ours, theirs, _places(ours, theirs))


def _places(ours: str | None, theirs: str | None) -> float | None:
    if ours is None or theirs is None or NUMBER.split(ours) != NUMBER.split(theirs):
        return None
    pairs = list(zip(NUMBER.findall(ours), NUMBER.findall(theirs)))
    if any(not Decimal(a).is_finite() or not Decimal(b).is_finite() for a, b in pairs if a != b):
        return None
    return max((_apart(Decimal(a), Decimal(b)) for a, b in pairs), default=0.0)


def _apart(a: Decimal, b: Decimal) -> float:
    """How far apart two printed numbers are, in units of the last digit of the one with fewer."""
    exponents = (a.as_tuple().exponent, b.as_tuple().exponent)
    unit = Decimal(1).scaleb(max(exponent for exponent in exponents if isinstance(exponent, int)))
    return float(abs(a - b) / unit)
