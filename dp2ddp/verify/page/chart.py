"""Curves as SVG: where the lines, the marks on the axes and the words go."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 480, 270
LEFT, RIGHT, TOP, BOTTOM = 62, WIDTH - 14, 14, HEIGHT - 38
_POINTS = 800  # a curve is drawn with; more would not show
_READ = 4000  # values of a curve that can be read off
_MARKS = 5  # on an axis, about

Values = Sequence["float | None"]


@dataclass(frozen=True)
class Mark:
    """A mark on an axis: where, and what it says."""

    at: float
    text: str


@dataclass(frozen=True)
class Chart:
    """A picture: curves over what is counted along x, from 1.

    Attributes:
        x_name: what x counts.
        summary: what it shows, in words, for who can't see it.
        lines: each curve's path, by its class in the page's styles.
        xs, ys: marks on the axes.
        data: the values, as JSON, to be read off.
        level: where the tolerance is, None where there is none.
        first: where the first value above it is.
    """

    id: str
    title: str
    x_name: str
    summary: str
    lines: Mapping[str, str]
    xs: Sequence[Mark]
    ys: Sequence[Mark]
    data: Markup
    level: Mark | None = None
    first: tuple[float, float] | None = None


def of_values(id: str, title: str, x_name: str, summary: str, curves: Mapping[str, Values]) -> Chart:
    """A chart whose y axis is even; `curves` by their class in the page's styles."""
    finite = [value for values in curves.values() for value in values if value is not None]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if low == high:
        low, high = low - abs(low or 1) / 2, high + abs(high or 1) / 2
    step = _round_step((high - low) / _MARKS)
    ticks = [number * step for number in range(math.floor(low / step), math.ceil(high / step) + 1)]
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def height(value: float) -> float:
        return _y((value - low) / (high - low))

    ys = [Mark(height(value), f"{value:.6g}") for value in ticks]
    return Chart(id, title, x_name, summary, *_drawn(x_name, curves, height, ys))


def of_differences(id: str, title: str, x_name: str, summary: str, values: Sequence[float], tolerance: float) -> Chart:
    """A chart whose y axis counts powers of ten; at its foot is 0, which is the same bits."""
    positive = [value for value in (*values, tolerance) if 0 < value < math.inf]
    low = math.floor(min(math.log10(min(positive, default=1e-6)), -8))
    high = max(math.ceil(math.log10(max(positive, default=1e-6))), -4)
    foot = low - 1  # one power further down stands for 0

    def height(value: float) -> float:
        power = foot if value <= 0 else min(math.log10(value), high) if value < math.inf else high
        return _y((power - foot) / (high - foot))

    apart = max(1, round((high - low) / _MARKS))
    ys = [Mark(_y(0), "0"), *(Mark(height(10.0**power), f"1e{power}") for power in range(high, low - 1, -apart))]
    beyond = next((index for index, value in enumerate(values) if value > tolerance), None)
    first = None if beyond is None else (_x(beyond, len(values)), height(values[beyond]))
    level = Mark(height(tolerance), f"tolerance {tolerance:.0e}") if tolerance > 0 else None
    return Chart(id, title, x_name, summary, *_drawn(x_name, {"difference": values}, height, ys), level, first)


def _drawn(
    x_name: str, curves: Mapping[str, Values], height: Callable[[float], float], ys: Sequence[Mark]
) -> tuple[Mapping[str, str], Sequence[Mark], Sequence[Mark], Markup]:
    """The curves' paths, both axes' marks, and the values to be read off."""
    count = max(map(len, curves.values()), default=0)
    step = max(1, round(_round_step(count / _MARKS))) if count else 1
    xs = [1, *range(step if step > 1 else 2, count + 1, step)] if count else []
    lines = {kind: _path([None if v is None else height(v) for v in values], count) for kind, values in curves.items()}
    told = [[kind, [v if v is not None and math.isfinite(v) else None for v in values[:_READ]]]
            for kind, values in curves.items()]  # fmt: skip
    # Between <script> tags only `<` could end it.
    data = Markup(json.dumps({"x": x_name, "curves": told}).replace("<", "\\u003c"))
    return lines, [Mark(_x(number - 1, count), str(number)) for number in xs], ys, data


def _x(index: int, count: int) -> float:
    share = index / (count - 1) if count > 1 else 0.5
    return round(LEFT + share * (RIGHT - LEFT), 1)


def _y(share: float) -> float:
    return round(BOTTOM - share * (BOTTOM - TOP), 1)


def _path(heights: Sequence[float | None], count: int) -> str:
    """A line through the points, broken where there is none; a single point becomes a short line."""
    parts: list[str] = []
    pen = False
    for index in _chosen(heights):
        y = heights[index]
        if y is not None:
            parts.append(f"{'L' if pen else 'M'}{_x(index, count):g} {y:g}")
        pen = y is not None
    return "".join([*parts, "h.1"] if len(parts) == 1 else parts)


def _chosen(heights: Sequence[float | None]) -> Iterator[int]:
    """Of many points the lowest and the highest of each part, so that no peak is lost."""
    size = max(1.0, 2 * len(heights) / _POINTS)
    for part in range(math.ceil(len(heights) / size)):
        indices = range(int(part * size), min(len(heights), int((part + 1) * size)))
        there = [index for index in indices if heights[index] is not None]
        yield from sorted({f(there, key=lambda i: heights[i] or 0) for f in (min, max)}) if there else indices[:1]


def _round_step(rough: float) -> float:
    """The round number (1, 2 or 5 times a power of ten) that isn't smaller than `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
