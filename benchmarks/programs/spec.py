"""Programs as data: what there is of them, which fit together, how one is drawn, and how it is written down."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from . import blocks, models, odd_blocks, optimizers, shapes
from .parts import BLOCKS, OPTIMIZERS, SHAPES, Part

__all__ = ["Data", "Model", "Options", "Spec", "blocks", "draw", "odd_blocks", "optimizers", "shapes"]

_SGD = OPTIMIZERS.plain("SGD")
_LONG = (6, 8, 4, 5, 7, 9)
_SHORT = (*_LONG, 3, 2, 1)


@dataclass(frozen=True)
class Model:
    """A model of a program: its blocks, and how it is wrapped, called and answers (`models`)."""

    blocks: tuple[Part, ...] = ()
    wrap: str = models.WRAPS[0]
    call: str = models.CALLS[0]
    output: str = models.OUTPUTS[0]


@dataclass(frozen=True)
class Data:
    """Where batches come from.

    Attributes:
        source: "own": tensors that the program makes; "loader".
        rows: of each own batch; of a loader's data set, and of its batches.
        shuffle, drop_last: the loader's.
    """

    source: str = "own"
    rows: tuple[int, ...] = (6,)
    shuffle: bool = False
    drop_last: bool = False

    def sizes(self) -> set[int]:
        """Those of batches."""
        if self.source == "own":
            return set(self.rows)
        total, size = self.rows
        return {min(size, total), *([] if self.drop_last or not total % size else [total % size])}


@dataclass(frozen=True)
class Options:
    """What holds for a whole program.

    Attributes:
        look: whether it looks at outputs: "never", "after" the backward, "before" it.
        deferred: outputs and batches of a few bytes are large enough to stay on their ranks.
        buckets: gradients of a few bytes make a bucket.
        autocast: forwards are in bfloat16.
        set_to_none: how gradients are cleared.
        closure: the optimizer calls what computes the gradients.
    """

    look: str = "never"
    deferred: bool = False
    buckets: bool = False
    autocast: bool = False
    set_to_none: bool = True
    closure: bool = False


@dataclass(frozen=True)
class Spec:
    """A program."""

    seed: int = 0
    ranks: int = 2
    steps: int = 2
    models: tuple[Model, ...] = (Model(),)
    data: Data = Data()
    options: Options = Options()
    shapes: tuple[Part, ...] = ()
    optimizer: Part = _SGD

    def having(self, role: str) -> list[Part]:
        """Its shapes in a role."""
        return [part for part in self.shapes if SHAPES.kinds[part.name].role == role]

    @property
    def precision(self) -> str:
        """The narrowest type of numbers in it."""
        if self.options.autocast:
            return "bfloat16"
        blocks = [block for model in self.models for block in model.blocks]
        return "float32" if any(block.options.get("kind") == "float32" for block in blocks) else "float64"

    @property
    def is_bound_to_the_cpu(self) -> bool:
        """Whether it does something else on devices: autocast, the CPU's random numbers between theirs, their order."""
        tags = {tag for model in self.models for block in model.blocks for tag in BLOCKS.tags(block)}
        hooked = any(part.name == "hooks_behind_accumulation" for part in self.shapes)
        return self.options.autocast or {"draws on the CPU", "drops"} <= tags or (hooked and "reentrant" in tags)

    def to_json(self) -> str:
        """One line, from which `from_json` makes the program again."""
        told = asdict(self)
        told["shapes"] = [part.as_json() for part in self.shapes]
        told["optimizer"] = self.optimizer.as_json()
        for model, own in zip(told["models"], self.models):
            model["blocks"] = [part.as_json() for part in own.blocks]
        return json.dumps(told)

    @staticmethod
    def from_json(text: str) -> Spec:
        """The program that `to_json` wrote. What isn't told is the plainest."""
        told: dict[str, Any] = json.loads(text)
        if "models" in told:
            told["models"] = tuple(_model(model) for model in told["models"])
        if "shapes" in told:
            told["shapes"] = tuple(map(Part.from_json, told["shapes"]))
        if "optimizer" in told:
            told["optimizer"] = Part.from_json(told["optimizer"])
        data = told.get("data", {})
        told["data"] = Data(**{**data, **({"rows": tuple(data["rows"])} if "rows" in data else {})})
        told["options"] = Options(**told.get("options", {}))
        return Spec(**told)


def _model(told: dict[str, Any]) -> Model:
    return Model(**{**told, "blocks": tuple(map(Part.from_json, told.get("blocks", ())))})


# --- what fits together ---------------------------------------------------------------------------------------------


def why_not(spec: Spec) -> str | None:
    """What is wrong with a program, so that its outcome isn't defined; None if nothing is."""
    of_blocks = {tag for model in spec.models for block in model.blocks for tag in BLOCKS.tags(block)}
    names = {block.name for model in spec.models for block in model.blocks}
    of_shapes = {tag for shape in spec.shapes for tag in SHAPES.tags(shape)}
    of_optimizer = OPTIMIZERS.tags(spec.optimizer)
    found = {
        "no second model": "two" in of_shapes and len(spec.models) < 2,
        "no second derivative": "second" in of_shapes and "first" in of_blocks,
        "checkpoints know no autograd.grad": "grad" in of_shapes and "reentrant" in of_blocks | of_shapes,
        "a model that isn't copied": "copies" in of_shapes and "not_copied" in of_blocks,
        "complex numbers have no order": "complex" in of_blocks
        and ("real" in of_shapes or not _takes_complex(spec.optimizer) or spec.options.autocast),
        "rounding decides": "sharp" in of_optimizer and "level" in of_blocks | of_shapes,
        "rounding is coarse": spec.options.autocast
        and (spec.optimizer.name != "SGD" or bool({"second", "grad"} & of_shapes) or "inner" in of_blocks),
        "gradients that aren't there": "slope" in of_shapes and "severs" in of_blocks,
        "LBFGS takes views": spec.optimizer.name == "LBFGS" and "strided" in of_blocks,
        "fused optimizers forget nothing": spec.optimizer.options["way"] == "fused" and "thaws" in of_shapes,
        "sparse gradients": "sparse" in of_blocks and not _takes_sparse(spec),
        # torch's replicas give all parameters dense zeros in a backward of their own; ranks keep what is sparse so.
        "sparse gradients that become dense": "sparse" in of_blocks and bool({"reentrant", "inner"} & of_blocks),
        # An output that only the backward of a function of its own might lead on from: zeros here, nothing there.
        "perhaps": "severs" in of_blocks and bool({"checkpointed_with_a_backward_of_its_own", "own_function"} & names),
        # DataParallel has other replicas in each forward, and computes all gradients where some are asked for.
        "hooks that see more than on one GPU": "hook_that_removes_itself" in names
        and ("grad" in of_shapes or any(shape.name == "forwards_before_backwards" for shape in spec.shapes)),
        "no batch": spec.data.source == "loader" and spec.data.drop_last and spec.data.rows[0] < spec.data.rows[1],
        "too few rows": "pairs" in of_blocks and not _has_pairs(spec),
        "twice the same": len({part.name for part in spec.shapes}) < len(spec.shapes),
    }
    return next((why for why, is_so in found.items() if is_so), None)


def _takes_sparse(spec: Spec) -> bool:
    """Whether torch has all that a program does to sparse gradients."""
    return (
        all("sparse_too" in SHAPES.tags(shape) for shape in spec.shapes)
        and spec.optimizer.name != "LBFGS"
        and spec.options.set_to_none
        and not spec.options.autocast
    )


def _takes_complex(optimizer: Part) -> bool:
    return optimizer.name not in ("Adafactor", "LBFGS") and optimizer.options["way"] != "fused"


def _has_pairs(spec: Spec) -> bool:
    """Whether each replica that has rows has two of them."""
    if any(model.call == "uneven" for model in spec.models):
        return False
    for rows in spec.data.sizes():
        chunk = -(-rows // spec.ranks)
        if chunk < 2 or rows % chunk == 1:
            return False
    return True


# --- drawing --------------------------------------------------------------------------------------------------------


def draw(seed: int, ranks: Sequence[int], only: Collection[str] = ()) -> Spec:
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


def _draw(rng: random.Random, seed: int, ranks: Sequence[int], only: Collection[str]) -> Spec:
    style = rng.choices(("any", "sparse", "autocast"), (20, 1, 1))[0]
    names = [name for name, kind in SHAPES.kinds.items() if style != "sparse" or "sparse_too" in kind.tags]
    chosen = rng.sample(names, rng.choice((1, 2, 2, 3)))
    if only:
        chosen[0] = rng.choice(sorted(only))
    drawn = tuple(SHAPES.draw(name, rng) for name in dict.fromkeys(chosen))
    tags = {tag for shape in drawn for tag in SHAPES.tags(shape)}
    count = 2 if "two" in tags or rng.random() < 0.05 else 1
    many = rng.random()
    return Spec(
        seed=seed,
        ranks=rng.choice(ranks),
        steps=rng.choice((2, 3, 3, 4)),
        models=tuple(_draw_model(rng, tags, style) for _ in range(count)),
        data=_draw_data(rng),
        options=Options(
            look=rng.choice(("never", "after", "before")),
            deferred=rng.random() < 0.5,
            buckets=rng.random() < 0.7,
            autocast=style == "autocast",
            set_to_none=rng.random() < 0.7,
            closure=rng.random() < 0.1,
        ),
        shapes=drawn,
        optimizer=OPTIMIZERS.draw(rng.choice(list(OPTIMIZERS.kinds)) if many < 0.6 else "SGD", rng),
    )


def _draw_model(rng: random.Random, tags: Collection[str], style: str) -> Model:
    unwanted = {"first"} if "second" in tags else set()
    names = [name for name, kind in BLOCKS.kinds.items() if not unwanted & kind.tags]
    drawn = [BLOCKS.draw(rng.choice(names), rng) for _ in range(rng.choice((1, 2, 2, 3, 4)))]
    if style != "sparse":
        drawn = [part if "sparse" not in BLOCKS.tags(part) else BLOCKS.plain(part.name) for part in drawn]
    return Model(
        blocks=tuple(drawn),
        wrap=rng.choices(models.WRAPS, (6, 2, 1))[0],
        call=rng.choices(models.CALLS, (5, 1, 1, 1))[0],
        output=rng.choices(models.OUTPUTS, (5, 1, 1, 1, 1, 1))[0],
    )


def _draw_data(rng: random.Random) -> Data:
    if rng.random() < 0.5:
        sizes = _SHORT if rng.random() < 0.6 else _LONG[:3]
        return Data("own", tuple(rng.choice(sizes) for _ in range(rng.choice((1, 2, 3)))))
    size = rng.choice(_SHORT[:7])
    total = size * rng.choice((1, 2, 3)) + rng.choice((0, 0, 1, 2, 3))
    return Data("loader", (total, size), shuffle=rng.random() < 0.5, drop_last=rng.random() < 0.3)
