"""The difference of the parameters over the steps, as a curve in SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 480, 270
LEFT, RIGHT, TOP, BOTTOM = 62, WIDTH - 14, 14, HEIGHT - 38
_POINTS = 800  # the curve is drawn with; more would not show
_MARKS = 5  # on an axis, about


@dataclass(frozen=True)
class Mark:
    """A mark on an axis: where, and what it says."""

    at: float
    text: str


@dataclass(frozen=True)
class Chart:
    """The curve.

    Attributes:
        path: it.
        xs, ys: marks on the axes.
        tolerance: the line of what counts as agreement.
        first: where the first value above that is; None where there is none.
    """

    path: str
    xs: Sequence[Mark]
    ys: Sequence[Mark]
    tolerance: Mark
    first: tuple[float, float] | None


def drawn(values: Sequence[float], tolerance: float) -> Chart:
    """The curve of what differs after each step (from 1); y counts powers of ten, and at its foot are the same bits."""
    positive = [value for value in (*values, tolerance) if 0 < value < math.inf]
    low = min(math.floor(math.log10(min(positive))), -8)
    high = max(math.ceil(math.log10(max(positive))), -4)
    foot = low - 1  # one power further down stands for 0

    def height(value: float) -> float:
        power = foot if value <= 0 else min(math.log10(value), high) if value < math.inf else high
        return round(BOTTOM - (power - foot) / (high - foot) * (BOTTOM - TOP), 1)

    def place(index: int) -> float:
        share = index / (len(values) - 1) if len(values) > 1 else 0.5
        return round(LEFT + share * (RIGHT - LEFT), 1)

    points = [f"{place(index):g} {height(values[index]):g}" for index in _chosen(values)]
    beyond = next((index for index, value in enumerate(values) if value > tolerance), None)
    apart = max(1, round((high - low) / _MARKS))
    numbers = sorted({round(1 + (len(values) - 1) * part / _MARKS) for part in range(_MARKS + 1)})
    return Chart(
        path=f"M{'L'.join(points)}" + "h.1" * (len(points) == 1),
        xs=[Mark(place(number - 1), str(number)) for number in numbers],
        ys=[Mark(BOTTOM, "0"), *(Mark(height(10.0**power), f"1e{power}") for power in range(high, low - 1, -apart))],
        tolerance=Mark(height(tolerance), f"tolerance {tolerance:.0e}"),
        first=None if beyond is None else (place(beyond), height(values[beyond])),
    )


def _chosen(values: Sequence[float]) -> Iterator[int]:
    """Of many points the lowest and the highest of each part, so that no peak is lost."""
    size = max(1.0, 2 * len(values) / _POINTS)
    for part in range(math.ceil(len(values) / size)):
        indices = range(int(part * size), min(len(values), int((part + 1) * size)))
        yield from sorted({extreme(indices, key=values.__getitem__) for extreme in (min, max)})
