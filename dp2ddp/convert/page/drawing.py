"""A flow as a picture: boxes, arrows and lanes with their places, beside each other or one below the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dp2ddp.convert.page.flow import ALONE, Deed, Flow, Loader, Part

TITLES = (
    ("Every process loads", "its rows of each batch"),
    ("Every process has a copy", "and sums its gradients"),
    ("Process 0 alone writes", "these files"),
)
#: Where batches can't be told apart by rows.
WHOLE = ("Every process loads", "whole batches")
EMPTY = ("no loader: each makes the same batches", "", "nothing is written")
_MOST = 8  # boxes in a lane
_LANE, _GAP, _PAD, _HEAD = 284, 54, 14, 56  # width of a lane, between lanes, in a lane, its title; pixels
_BOX, _BETWEEN = 62, 12  # a box's height, and between boxes
_GUTTER, _STEP = 40, 6  # where arrows run in the narrow picture, and how far apart
_WIDE_CHARACTERS, _SMALL_CHARACTERS = 7.9, 6.7  # pixels that a character takes in a box's title and below


@dataclass(frozen=True)
class Box:
    """A box with up to three lines, cut to its width; `part` has them whole, None for what stands for more."""

    x: float
    y: float
    width: float
    height: float
    title: str
    detail: str
    part: Part | None
    kind: str


@dataclass(frozen=True)
class Arrow:
    """An arrow along the SVG path `path`, and what it says."""

    path: str
    kind: str
    says: str


@dataclass(frozen=True)
class Lane:
    """A lane's ground and title; `text` is where its writing begins."""

    x: float
    y: float
    width: float
    height: float
    text: float
    title: tuple[str, str]
    empty: str


@dataclass
class Drawing:
    """A picture of `width` by `height` pixels; `upright` where the lanes lie one below the other."""

    width: float
    height: float
    upright: bool
    lanes: list[Lane] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)


def written(flow: Flow) -> list[Deed]:
    """What process 0 alone writes: each file once."""
    deeds = (deed for deed in flow.deeds if deed.who == ALONE)
    return list({(deed.name, deed.path): deed for deed in reversed(list(deeds))}.values())[::-1]


def drawn(flow: Flow, *, upright: bool) -> Drawing:
    """The picture of a flow."""
    files = written(flow)
    columns: tuple[tuple[str, Sequence[Part]], ...] = (
        ("loader", flow.loaders),
        ("model", flow.models),
        ("file", files),
    )
    heights = [_height(min(len(parts), _MOST + 1)) for _, parts in columns]
    if upright:
        drawing = Drawing(_LANE + _GUTTER + 12, sum(heights) + 2 * _BETWEEN, True)
    else:
        drawing = Drawing(3 * _LANE + 2 * _GAP, max(heights), False)
    y = 0.0
    placed: list[list[Box]] = []
    for number, (kind, parts) in enumerate(columns):
        x = 0.0 if upright else number * (_LANE + _GAP)
        height = heights[number] if upright else drawing.height
        width = drawing.width if upright else _LANE
        left = _GUTTER if upright else x + _PAD
        title = WHOLE if any(isinstance(part, Loader) and part.whole for part in parts) else TITLES[number]
        drawing.lanes.append(Lane(x, y, width, height, left, title, "" if parts else EMPTY[number]))
        placed.append(list(_boxes(kind, parts, left, y + _HEAD, x + width - _PAD - left)))
        y += height + _BETWEEN if upright else 0
    drawing.boxes += [box for boxes in placed for box in boxes]
    _connect(drawing, flow, files, placed)
    return drawing


def _height(boxes: int) -> float:
    return _HEAD + max(boxes, 1) * (_BOX + _BETWEEN)


def _boxes(kind: str, parts: Sequence[Part], x: float, y: float, width: float) -> list[Box]:
    shown = parts if len(parts) <= _MOST + 1 else parts[:_MOST]
    # Cards behind a model's box, one copy for each GPU, take some of its room.
    room = width - 24 - (8 if kind == "model" else 0)
    boxes = [
        Box(
            x,
            y + number * (_BOX + _BETWEEN),
            width - (8 if kind == "model" else 0),
            _BOX - (8 if kind == "model" else 0),
            _cut(part.name, room / _WIDE_CHARACTERS),
            _cut("" if part.detail == part.name else part.detail, room / _SMALL_CHARACTERS),
            part,
            kind,
        )
        for number, part in enumerate(shown)
    ]
    if len(shown) < len(parts):
        text = f"and {len(parts) - len(shown)} more"
        boxes.append(Box(x, y + len(shown) * (_BOX + _BETWEEN), width, _BOX, text, "see the list below", None, "more"))
    return boxes


def _cut(text: str, most: float) -> str:
    return text if len(text) <= most else text[: int(most) - 1] + "…"


def _connect(drawing: Drawing, flow: Flow, files: Sequence[Deed], placed: Sequence[Sequence[Box]]) -> None:
    loaders, models, outputs = placed
    ends: list[tuple[Box, Box, str, str]] = []
    pairs = dict.fromkeys((link.loader, link.model) for link in flow.links)
    for loader, model in pairs:
        kinds = {link.trains for link in flow.links if (link.loader, link.model) == (loader, model)}
        one, other = _at(loaders, loader), _at(models, model)
        if one is not None and other is not None:
            verb = " and ".join(word for trains, word in ((True, "trains"), (False, "evaluates")) if trains in kinds)
            names = f"{flow.loaders[loader].name} {verb} {flow.models[model].name}"
            ends.append((one, other, "trains" if True in kinds else "evaluates", names))
    for number, deed in enumerate(files):
        for model in deed.models:
            one, other = _at(models, model), _at(outputs, number)
            if one is not None and other is not None:
                ends.append((one, other, "saves", f"{flow.models[model].name} is written to {deed.name}"))
    for number, (one, other, kind, says) in enumerate(ends):
        lane = _GUTTER - 10 - (number % 5) * _STEP
        drawing.arrows.append(Arrow(_around(one, other, lane) if drawing.upright else _across(one, other), kind, says))


def _at(boxes: Sequence[Box], number: int) -> Box | None:
    return boxes[number] if number < len(boxes) and boxes[number].part is not None else None


def _across(one: Box, other: Box) -> str:
    x, y = one.x + one.width + (8 if one.kind == "model" else 0), one.y + one.height / 2
    to_x, to_y = other.x - 7, other.y + other.height / 2
    middle = (x + to_x) / 2
    return f"M{x:g} {y:g}C{middle:g} {y:g} {middle:g} {to_y:g} {to_x:g} {to_y:g}"


def _around(one: Box, other: Box, lane: float) -> str:
    y, to_y = one.y + one.height / 2 + 6, other.y + other.height / 2 - 6
    turn = f"H{lane + 6:g}Q{lane:g} {y:g} {lane:g} {y + 6:g}V{to_y - 6:g}Q{lane:g} {to_y:g} {lane + 6:g} {to_y:g}"
    return f"M{one.x:g} {y:g}{turn}H{other.x - 7:g}"
