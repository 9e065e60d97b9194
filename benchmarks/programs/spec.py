"""Programs as data: what fits together, how one is drawn, and how a failing one is made smaller."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Callable

from . import around, backwards, blocks, losses, models
from .parts import KINDS, Kind, Part, add, drawn, names_of

__all__ = ["around", "backwards", "blocks", "losses", "models"]  # whose parts there are by then

_SHAPES = ("loss", "backward", "gradients", "around")
_LONG = (6, 8, 4, 5, 7, 9)
_SHORT = (*_LONG, 3, 2, 1)


@add(
    "program",
    ranks=(2, 3),
    steps=(2, 1, 3, 4),
    look=("never", "after", "before"),
    deferred=(False, True),
    buckets=(False, True),
    autocast=(False, True),
    set_to_none=(True, False),
    closure=(False, True),
    seed=(0,),
)
def program(**options: Any) -> None:
    """What holds for a whole program.

    Options:
        look: whether it looks at outputs: "never", "after" the backward, "before" it.
        deferred: outputs and batches of a few bytes are large enough to stay on their ranks.
        buckets: gradients of a few bytes make a bucket.
        autocast: forwards are in bfloat16.
        set_to_none: how gradients are cleared.
        closure: the optimizer calls what computes the gradients.
    """


@add("data", rows=((6,),))
def own(rows: Sequence[int]) -> None:
    """Batches are tensors that the program makes, of so many rows each."""


@add("data", shuffle=(False, True), drop_last=(False, True), rows=((6, 4),))
def loader(**options: Any) -> None:
    """Batches come from a loader, of a data set of `rows[0]` rows, `rows[1]` in each."""


#: Settings that keep tiny models tame.
_OPTIMIZERS: dict[str, tuple[dict[str, Any], ...]] = {
    "SGD": ({"lr": 0.05}, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}, {"lr": 0.02, "momentum": 0.5}),
    "Adam": ({"lr": 0.01}, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.01}),
    "AdamW": ({"lr": 0.01}, {"lr": 0.01, "maximize": True}),
    "RMSprop": ({"lr": 0.005}, {"lr": 0.005, "momentum": 0.5, "centered": True}),
    "Adadelta": ({"lr": 0.5},),
    "Adamax": ({"lr": 0.01},),
    "NAdam": ({"lr": 0.01},),
    "RAdam": ({"lr": 0.01},),
    "ASGD": ({"lr": 0.05},),
    "Adagrad": ({"lr": 0.02},),
    "Rprop": ({"lr": 0.005},),
    "Adafactor": ({"lr": 0.01},),
    "LBFGS": ({"lr": 0.1, "max_iter": 3}, {"lr": 0.5, "max_iter": 3, "line_search_fn": "strong_wolfe"}),
}


def _settings(name: str, setting: int, way: str) -> dict[str, Any]:
    return {**_OPTIMIZERS[name][setting], **({} if way == "plain" else {way: True})}


for _name, _each in _OPTIMIZERS.items():
    _ways = {"SGD": ("plain", "foreach", "fused"), "Adam": ("plain", "foreach", "fused"), "LBFGS": ("plain",)}
    # `sharp`: makes much of gradients that are zero but for rounding.
    KINDS[_name] = Kind(
        partial(_settings, _name),
        "optimizer",
        frozenset() if _name in ("SGD", "ASGD", "LBFGS") else frozenset({"sharp"}),
        {"setting": range(len(_each)), "way": _ways.get(_name, ("plain", "foreach"))},
    )


def models_of(spec: Part) -> list[Part]:
    """A program's models."""
    return spec.of("model") or [Part("model")]


def data_of(spec: Part) -> Part:
    """Where its batches come from."""
    return next(iter(spec.of("data")), Part("own"))


def optimizer_of(spec: Part) -> Part:
    """What it trains with."""
    return next(iter(spec.of("optimizer")), Part("SGD"))


def sizes(data: Part) -> set[int]:
    """Those of batches."""
    if data.name == "own":
        return set(data["rows"])
    total, size = data["rows"]
    return {min(size, total), *([] if data["drop_last"] or not total % size else [total % size])}


def precision(spec: Part) -> str:
    """The narrowest type of numbers in it."""
    if spec["autocast"]:
        return "bfloat16"
    narrow = any(block.options.get("kind") == "float32" for model in models_of(spec) for block in model.parts)
    return "float32" if narrow else "float64"


def is_bound_to_the_cpu(spec: Part) -> bool:
    """Whether it does something else on devices: autocast, hooks in another order."""
    tags = {tag for model in models_of(spec) for block in model.parts for tag in block.tags}
    hooked = any("accumulated_hooks" in part.tags for part in spec.parts)
    return spec["autocast"] or (hooked and "reentrant" in tags)


def why_not(spec: Part) -> str | None:
    """What is wrong with a program, so that its outcome isn't defined; None if nothing is."""
    shapes, optimizer, data = spec.of(*_SHAPES), optimizer_of(spec), data_of(spec)
    of_blocks = {tag for model in models_of(spec) for block in model.parts for tag in block.tags}
    of_shapes = {tag for shape in shapes for tag in shape.tags}
    found = {
        "no second model": "two" in of_shapes and len(models_of(spec)) < 2,
        "no second derivative": "second" in of_shapes and "first" in of_blocks,
        "checkpoints know no autograd.grad": "grad" in of_shapes and "reentrant" in of_blocks | of_shapes,
        "a model that isn't copied": "copies" in of_shapes and "not_copied" in of_blocks,
        "complex numbers have no order": "complex" in of_blocks
        and ("real" in of_shapes or not _takes_complex(optimizer) or spec["autocast"]),
        "rounding decides": "sharp" in optimizer.tags and "level" in of_blocks | of_shapes,
        "rounding is coarse": spec["autocast"]
        and (optimizer.name != "SGD" or bool({"second", "grad"} & of_shapes) or "inner" in of_blocks),
        "gradients that aren't there": "slope" in of_shapes and "severs" in of_blocks,
        "LBFGS takes views": optimizer.name == "LBFGS" and "strided" in of_blocks,
        "fused optimizers forget nothing": optimizer["way"] == "fused" and "thaws" in of_shapes,
        "sparse gradients": "sparse" in of_blocks and not _takes_sparse(spec),
        # torch's replicas give all parameters dense zeros in a backward of their own; ranks keep what is sparse so.
        "sparse gradients that become dense": "sparse" in of_blocks and bool({"reentrant", "inner"} & of_blocks),
        # An output that only the backward of a function of its own might lead on from: zeros here, nothing there.
        "perhaps": {"severs", "perhaps"} <= of_blocks,
        # DataParallel has other replicas in each forward, and computes all gradients where some are asked for.
        "hooks that see more than on one GPU": "removes" in of_blocks and bool({"grad", "again"} & of_shapes),
        "no batch": data.name == "loader" and data["drop_last"] and data["rows"][0] < data["rows"][1],
        "too few rows": "pairs" in of_blocks and not _has_pairs(spec),
        "twice the same": len({part.name for part in shapes}) < len(shapes),
    }
    return next((why for why, is_so in found.items() if is_so), None)


def _takes_sparse(spec: Part) -> bool:
    """Whether torch has all that a program does to sparse gradients."""
    shapes = all("sparse_too" in shape.tags for shape in spec.of(*_SHAPES))
    return shapes and optimizer_of(spec).name != "LBFGS" and spec["set_to_none"] and not spec["autocast"]


def _takes_complex(optimizer: Part) -> bool:
    return optimizer.name not in ("Adafactor", "LBFGS") and optimizer["way"] != "fused"


def _has_pairs(spec: Part) -> bool:
    """Whether each replica that has rows has two of them."""
    if any(model["call"] == "uneven" for model in models_of(spec)):
        return False
    chunks = [(rows, -(-rows // spec["ranks"])) for rows in sizes(data_of(spec))]
    return all(chunk >= 2 and rows % chunk != 1 for rows, chunk in chunks)


def draw(seed: int, ranks: Sequence[int], only: Collection[str] = ()) -> Part:
    """A program.

    Args:
        seed: decides on everything.
        ranks: one of these numbers.
        only: shapes of which it has one at least; all by default.
    """
    rng = random.Random(seed)
    while True:
        spec = _draw(rng, seed, ranks, only)
        if why_not(spec) is None:
            return spec


def _draw(rng: random.Random, seed: int, ranks: Sequence[int], only: Collection[str]) -> Part:
    style = rng.choices(("any", "sparse", "autocast"), (20, 1, 1))[0]
    names = [name for name in names_of(*_SHAPES) if style != "sparse" or "sparse_too" in KINDS[name].tags]
    chosen = rng.choices(names, _weights(names), k=rng.choice((1, 2, 2, 3)))
    if only:
        chosen[0] = rng.choice(sorted(only))
    shapes = [drawn(name, rng) for name in dict.fromkeys(chosen)]
    tags = {tag for shape in shapes for tag in shape.tags}
    nets = [_draw_model(rng, tags, style) for _ in range(2 if "two" in tags or rng.random() < 0.05 else 1)]
    optimizer = rng.choice(names_of("optimizer")) if rng.random() < 0.6 else "SGD"
    return drawn(
        *("program", rng, [*nets, *shapes, _draw_data(rng), drawn(optimizer, rng)]),
        seed=seed,
        ranks=rng.choice(ranks),
        steps=rng.choice((2, 3, 3, 4)),
        autocast=style == "autocast",
        closure=rng.random() < 0.1,
    )


def _weights(names: Sequence[str]) -> list[float]:
    """What has many choices is drawn more often."""
    return [max(3, *map(len, KINDS[name].choices.values()), 3) / 3 for name in names]


def _draw_model(rng: random.Random, tags: Collection[str], style: str) -> Part:
    unwanted = {"first"} if "second" in tags else set()
    names = [name for name in names_of("block") if not unwanted & KINDS[name].tags]
    parts = [drawn(name, rng) for name in rng.choices(names, _weights(names), k=rng.choice((1, 2, 2, 3, 4)))]
    if style != "sparse":
        parts = [part if "sparse" not in part.tags else Part(part.name) for part in parts]
    often = {"wrap": (6, 2, 1), "call": (5, 1, 1, 1), "output": (5, 1, 1, 1, 1, 1)}
    given = {key: rng.choices(KINDS["model"].choices[key], weights)[0] for key, weights in often.items()}
    return drawn("model", rng, parts, **given)


def _draw_data(rng: random.Random) -> Part:
    if rng.random() < 0.5:
        known = _SHORT if rng.random() < 0.6 else _LONG[:3]
        return drawn("own", rng, rows=tuple(rng.choice(known) for _ in range(rng.choice((1, 2, 3)))))
    size = rng.choice(_SHORT[:7])
    total = size * rng.choice((1, 2, 3)) + rng.choice((0, 0, 1, 2, 3))
    return drawn("loader", rng, rows=(total, size))


def shrink(spec: Part, fails: Callable[[Part], bool], tries: int) -> Part:
    """The smallest program that is found within as many tries and still `fails`."""
    going = True
    while going:
        going = False
        for less in spec.smaller():
            if why_not(less) is not None:
                continue
            if not tries:
                return spec
            tries -= 1
            if fails(less):
                spec, going = less, True
                break
    return spec
