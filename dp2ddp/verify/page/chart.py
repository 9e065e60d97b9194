"""Curves as SVG: where the lines, the marks on the axes and the words go."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, HEIGHT = 480, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 38
_POINTS = 800  # a curve is drawn with; more would not show
_READ = 4000  # values of a curve that can be read off
_MARKS = 5  # on an axis, about

Values = Sequence["float | None"]


@dataclass(frozen=True)
class Curve:
    """One side's line. `kind` is its class in the page's styles: original, converted, difference."""

    name: str
    kind: str
    values: Values


@dataclass(frozen=True)
class Line:
    """A path of the picture, in its coordinates."""

    kind: str
    path: str


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
        y_name: what y measures.
        summary: what it shows, in words, for who can't see it.
        level: where the tolerance is, None where there is none.
        first: where the first value above it is.
        data: the values, as JSON, to be read off.
    """

    id: str
    title: str
    x_name: str
    y_name: str
    summary: str
    lines: Sequence[Line]
    xs: Sequence[Mark]
    ys: Sequence[Mark]
    level: Mark | None
    first: tuple[float, float] | None
    data: Markup
    curves: Sequence[Curve]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM


def of_values(id: str, title: str, x_name: str, y_name: str, summary: str, curves: Sequence[Curve]) -> Chart:
    """A chart whose y axis is even."""
    finite = [value for curve in curves for value in curve.values if value is not None]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if low == high:
        low, high = low - abs(low or 1) / 2, high + abs(high or 1) / 2
    ticks = _even(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    ys = [Mark(_y((value - low) / (high - low)), f"{value:.6g}") for value in ticks]
    heights = [[None if v is None else _y((v - low) / (high - low)) for v in curve.values] for curve in curves]
    return _chart(id, title, x_name, y_name, summary, curves, heights, ys)


def of_differences(id: str, title: str, x_name: str, values: Sequence[float], tolerance: float, summary: str) -> Chart:
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
    heights = [height(value) for value in values]
    beyond = next((index for index, value in enumerate(values) if value > tolerance), None)
    first = None if beyond is None else (_x(beyond, len(values)), heights[beyond])
    curve = Curve("difference", "difference", [value if math.isfinite(value) else None for value in values])
    level = Mark(height(tolerance), f"tolerance {tolerance:.0e}") if tolerance > 0 else None
    y_name = "relative difference"
    return _chart(id, title, x_name, y_name, summary, [curve], [heights], ys, level, first)


def _chart(
    id: str,
    title: str,
    x_name: str,
    y_name: str,
    summary: str,
    curves: Sequence[Curve],
    heights: Sequence[Sequence[float | None]],
    ys: Sequence[Mark],
    level: Mark | None = None,
    first: tuple[float, float] | None = None,
) -> Chart:
    count = max((len(curve.values) for curve in curves), default=0)
    xs = [Mark(_x(number - 1, count), str(number)) for number in _whole(count)]
    lines = [Line(curve.kind, _path(points, count)) for curve, points in zip(curves, heights)]
    read = {"x": x_name, "curves": [[curve.name, list(curve.values[:_READ])] for curve in curves]}
    # Between <script> tags only `<` could end it.
    data = Markup(json.dumps(read).replace("<", "\\u003c"))
    return Chart(id, title, x_name, y_name, summary, lines, xs, ys, level, first, data, curves)


def _x(index: int, count: int) -> float:
    share = index / (count - 1) if count > 1 else 0.5
    return round(_LEFT + share * (WIDTH - _LEFT - _RIGHT), 1)


def _y(share: float) -> float:
    return round(HEIGHT - _BOTTOM - share * (HEIGHT - _BOTTOM - _TOP), 1)


def _path(heights: Sequence[float | None], count: int) -> str:
    """A line through the points, broken where there is none; a single point becomes a short line."""
    parts: list[str] = []
    pen = False
    for index in _chosen(heights):
        y = heights[index]
        if y is None:
            pen = False
            continue
        x = _x(index, count)
        parts.append(f"{'L' if pen else 'M'}{x:g} {y:g}")
        pen = True
    if len(parts) == 1:
        parts.append("h.1")
    return "".join(parts)


def _chosen(heights: Sequence[float | None]) -> Iterator[int]:
    """Of many points the lowest and the highest of each stretch, so that no peak is lost."""
    if len(heights) <= _POINTS:
        yield from range(len(heights))
        return
    size = len(heights) / (_POINTS / 2)
    for stretch in range(_POINTS // 2):
        indices = range(int(stretch * size), int((stretch + 1) * size))
        there = [index for index in indices if heights[index] is not None]
        if there:
            yield from sorted({min(there, key=lambda i: heights[i] or 0), max(there, key=lambda i: heights[i] or 0)})
        else:
            yield indices[0]


def _step(rough: float) -> float:
    """The round number (1, 2 or 5 times a power of ten) that isn't smaller than `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)


def _even(low: float, high: float) -> list[float]:
    """Round numbers from about `low` to about `high`."""
    step = _step((high - low) / _MARKS)
    first = math.floor(low / step)
    return [number * step for number in range(first, math.ceil(high / step) + 1)]


def _whole(count: int) -> list[int]:
    """Whole numbers from 1 to `count`, evenly apart."""
    step = max(1, round(_step(count / _MARKS))) if count else 1
    return [1, *range(step if step > 1 else 2, count + 1, step)] if count else []
