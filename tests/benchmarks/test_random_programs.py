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
from programs.parts import KINDS, Part, names_of


def _all_parts(spec: Part) -> list[Part]:
    return [*spec.parts, *(block for net in spec.parts for block in net.parts)]


@pytest.fixture(scope="module")
def drawn() -> list[Part]:
    return [specs.draw(seed, (2, 3)) for seed in range(300)]


@pytest.fixture(scope="module")
def varied(drawn: list[Part]) -> list[Part]:
    """A few of these, the next of which has always the most kinds and options that those before haven't."""
    has = [
        {(part.name, *option) for part in _all_parts(spec) for option in (*part.options.items(), ())} for spec in drawn
    ]
    found: list[Part] = []
    while len(found) < 60:
        best = max(range(len(drawn)), key=lambda number: len(has[number]))
        has = [each - has[best] for each in has]
        found.append(drawn[best])
    return found


def test_programs_train_as_data_parallel(varied: list[Part]) -> None:
    with Crew(patience=120) as crew:
        outcomes = {spec["seed"]: crew.play(spec) for spec in varied}
    assert not {seed: outcome for seed, outcome in outcomes.items() if not outcome.is_fine}
    assert sum(outcome.kind == "raises" for outcome in outcomes.values()) < len(varied) / 10


def test_what_is_refused_is_no_difference() -> None:
    model = Part("model", parts=(Part("backward_in_forward"),))
    with Crew(patience=120) as crew:
        assert crew.play(Part("program", parts=(model, Part("hooks_behind_accumulation")))).kind == "refused"
        assert crew.play(Part("program", parts=(model,))).kind == "agrees"


@pytest.mark.usefixtures("pretended")
def test_the_emulation_is_torchs_own_data_parallel(varied: list[Part]) -> None:
    with Crew("torch", against="emulated", patience=120) as crew:
        outcomes = {spec["seed"]: crew.play(spec) for spec in varied[::2]}
    assert not {seed: outcome for seed, outcome in outcomes.items() if not outcome.is_fine}
    assert sum(outcome.kind == "agrees" for outcome in outcomes.values()) > 15


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

        def differs(spec: Part) -> bool:
            return crew.play(spec).kind == "differs"

        found = next(spec for seed in range(30) if differs(spec := specs.draw(seed, (2,))))
        small = specs.shrink(found, differs, tries=60)
    assert len([part for part in small.parts if part.role not in ("model", "data", "optimizer")]) <= 1
    assert len(small.of("model")) <= 1
    assert sum(len(model.parts) for model in small.of("model")) <= 1


def test_specs_are_json_and_their_seeds(drawn: list[Part]) -> None:
    assert [Part.from_json(spec.to_json()) for spec in drawn] == drawn
    assert Part.from_json('{"name": "program"}') == Part("program")
    assert [specs.draw(seed, (2, 3)) for seed in range(300)] == drawn


def test_everything_is_drawn_some_time(drawn: list[Part]) -> None:
    assert {part.name for spec in drawn for part in _all_parts(spec)} | {"program"} == set(KINDS)
    assert {size for spec in drawn for size in specs.sizes(specs.data_of(spec))} >= set(range(1, 10))
    assert len(names_of("loss", "backward", "gradients", "around")) > 55


def test_shapes_may_be_chosen() -> None:
    for seed in range(20):
        assert "sharpness_aware" in {part.name for part in specs.draw(seed, (2,), ["sharpness_aware"]).parts}


def test_programs_that_are_not_defined_are_not_drawn() -> None:
    model = Part("model", parts=(Part("embedding", {"sparse": True}),))
    assert specs.why_not(Part("program", parts=(model, Part("distance")))) is None
    assert specs.why_not(Part("program", parts=(model, Part("clip_value")))) == "sparse gradients"
