"""Making a failing program smaller, as long as it fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, Callable

from .parts import BLOCKS, OPTIMIZERS, SHAPES
from .spec import Data, Model, Options, Spec, why_not


def smaller(spec: Spec) -> Iterator[Spec]:
    """Programs that have something less, or plainer; the largest cuts first."""
    for index in range(len(spec.shapes)):
        yield replace(spec, shapes=_without(spec.shapes, index))
    for index in range(len(spec.models) - 1, 0, -1):
        yield replace(spec, models=_without(spec.models, index))
    for index, model in enumerate(spec.models):
        for less in _smaller_models(model):
            yield replace(spec, models=_with(spec.models, index, less))
    if spec.optimizer != OPTIMIZERS.plain("SGD"):
        yield replace(spec, optimizer=OPTIMIZERS.plain("SGD"))
        yield from (replace(spec, optimizer=part) for part in OPTIMIZERS.simpler(spec.optimizer))
    for field in fields(Options):
        if getattr(spec.options, field.name) != field.default:
            plainer: dict[str, Any] = {field.name: field.default}
            yield replace(spec, options=replace(spec.options, **plainer))
    yield from (replace(spec, data=data) for data in _smaller_data(spec.data))
    for index, shape in enumerate(spec.shapes):
        for part in SHAPES.simpler(shape):
            yield replace(spec, shapes=_with(spec.shapes, index, part))
    if spec.steps > 1:
        yield replace(spec, steps=1)
        yield replace(spec, steps=spec.steps - 1)
    if spec.ranks > 2:
        yield replace(spec, ranks=2)


def _smaller_models(model: Model) -> Iterator[Model]:
    for index in range(len(model.blocks)):
        yield replace(model, blocks=_without(model.blocks, index))
    plain = Model()
    for name in ("wrap", "call", "output"):
        if getattr(model, name) != getattr(plain, name):
            plainer: dict[str, Any] = {name: getattr(plain, name)}
            yield replace(model, **plainer)
    for index, block in enumerate(model.blocks):
        for part in BLOCKS.simpler(block):
            yield replace(model, blocks=_with(model.blocks, index, part))


def _smaller_data(data: Data) -> Iterator[Data]:
    if data.source == "loader":
        yield Data()
        if data.shuffle:
            yield replace(data, shuffle=False)
        if data.drop_last:
            yield replace(data, drop_last=False)
        total, size = data.rows
        if total > size:
            yield replace(data, rows=(total - size, size))
        return
    if data.rows != (6,):
        yield replace(data, rows=(6,))
    if len(data.rows) > 1:
        yield from (replace(data, rows=_without(data.rows, index)) for index in range(len(data.rows)))


def _without(items: tuple[Any, ...], index: int) -> tuple[Any, ...]:
    return items[:index] + items[index + 1 :]


def _with(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


def shrink(spec: Spec, fails: Callable[[Spec], bool], tries: int) -> Spec:
    """The smallest program that is found within as many tries and still `fails`."""
    going = True
    while going:
        going = False
        for less in smaller(spec):
            if why_not(less) is not None:
                continue
            if not tries:
                return spec
            tries -= 1
            if fails(less):
                spec, going = less, True
                break
    return spec
