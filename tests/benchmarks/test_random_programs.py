"""Random training programs: they agree, mistakes are seen, and a program is what its spec says."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dp2ddp_runtime.gradients import Layout
from dp2ddp_runtime.model import wrap_model
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from programs import spec as specs
from programs.crew import Crew
from programs.parts import BLOCKS, OPTIMIZERS, SHAPES
from programs.shrinking import shrink
from programs.spec import Spec

COUNT, SEED = 150, 11000


def test_programs_train_as_data_parallel() -> None:
    with Crew(patience=120) as crew:
        outcomes = {seed: crew.play(specs.draw(seed, (2, 3))) for seed in range(SEED, SEED + COUNT)}
    wrong = {seed: outcome for seed, outcome in outcomes.items() if not outcome.is_fine}
    assert not wrong
    assert sum(outcome.kind == "raises" for outcome in outcomes.values()) < COUNT / 10


def test_what_is_refused_is_no_difference() -> None:
    told = (
        '{"models": [{"blocks": [{"name": "backward_in_forward", "outside": true, "twice": false}]}], "shapes": [%s]}'
    )
    with Crew(patience=120) as crew:
        hooked = Spec.from_json(told % '{"name": "hooks_behind_accumulation", "what": "note"}')
        assert crew.play(hooked).kind == "refused"
        assert crew.play(Spec.from_json(told % "")).kind == "agrees"


@pytest.mark.usefixtures("pretended")
def test_the_emulation_is_torchs_own_data_parallel() -> None:
    with Crew("torch", against="emulated", patience=120) as crew:
        outcomes = {seed: crew.play(specs.draw(seed, (2, 3))) for seed in range(SEED, SEED + 40)}
    assert not {seed: outcome for seed, outcome in outcomes.items() if not outcome.is_fine}
    assert sum(outcome.kind == "agrees" for outcome in outcomes.values()) > 20


# --- mistakes that must be seen -------------------------------------------------------------------------------------


def unused_stay_none(module: nn.Module, dim: int = 0) -> Any:
    """Wrap a model so that what no replica uses keeps None for a gradient."""
    gradients: Any = importlib.import_module("dp2ddp_runtime.gradients")
    accumulate = gradients._accumulate

    def without_zeros(leaves: Any, grads: Any) -> None:
        accumulate(*zip(*(pair for pair in zip(leaves, grads) if pair[1].any())))

    begin = gradients.Sums.begin
    if accumulate.__name__ == "_accumulate":
        gradients._accumulate = without_zeros
        gradients.Sums.begin = lambda sums, *rest: begin(sums, *rest[:2], rest[2]._replace(model=()))
    return wrap_model(module, dim=dim)


def another_row(module: nn.Module, dim: int = 0) -> Any:
    """Wrap a model so that the first rank has the second row twice."""
    if Layout.take.__name__ == "take":
        take = Layout.take

        def wrong(layout: Any, tensor: torch.Tensor) -> torch.Tensor:
            rows = take(layout, tensor)
            return torch.cat([rows[1:2], rows[1:]]) if len(rows) > 1 else rows

        Layout.take = wrong  # type: ignore[method-assign]
    return wrap_model(module, dim=dim)


@pytest.mark.parametrize("mistake", [unused_stay_none, another_row])
def test_a_mistake_is_found_and_made_small(mistake: Any) -> None:
    with Crew(wrap=f"{__name__}:{mistake.__name__}", patience=120) as crew:

        def differs(spec: Spec) -> bool:
            return crew.play(spec).kind == "differs"

        found = next(spec for seed in range(SEED, SEED + 30) if differs(spec := specs.draw(seed, (2,))))
        small = shrink(found, differs, tries=60)
    assert len(small.shapes) <= 1
    assert len(small.models) == 1
    assert sum(len(model.blocks) for model in small.models) <= 1


# --- specs ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn() -> list[Spec]:
    return [specs.draw(seed, (2, 3)) for seed in range(300)]


def test_specs_are_json(drawn: list[Spec]) -> None:
    assert [Spec.from_json(spec.to_json()) for spec in drawn] == drawn
    assert Spec.from_json("{}") == Spec()


def test_a_seed_decides_on_everything(drawn: list[Spec]) -> None:
    assert [specs.draw(seed, (2, 3)) for seed in range(300)] == drawn


def test_everything_is_drawn_some_time(drawn: list[Spec]) -> None:
    shapes = {part.name for spec in drawn for part in spec.shapes}
    blocks = {part.name for spec in drawn for model in spec.models for part in model.blocks}
    assert shapes == set(SHAPES.kinds)
    assert blocks == set(BLOCKS.kinds)
    assert {spec.optimizer.name for spec in drawn} == set(OPTIMIZERS.kinds)
    assert {size for spec in drawn for size in spec.data.sizes()} >= set(range(1, 10))


def test_shapes_may_be_chosen() -> None:
    for seed in range(20):
        assert "sharpness_aware" in {part.name for part in specs.draw(seed, (2,), ["sharpness_aware"]).shapes}


def test_programs_that_are_not_defined_are_not_drawn() -> None:
    blocks = '[{"name": "embedding", "sparse": true, "padding": false}]'
    told = '{"models": [{"blocks": ' + blocks + '}], "shapes": [{"name": "%s"}]}'
    assert specs.why_not(Spec.from_json(told % "distance")) is None
    assert specs.why_not(Spec.from_json(told % "clip_value")) == "sparse gradients"
