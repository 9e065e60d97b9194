"""Parameters compared step by step: what is found, and by how much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dp2ddp.verify.compare import steps
from dp2ddp.verify.run import recording, state
from dp2ddp.verify.run.recording import Recording
from dp2ddp.verify.run.step_hooks import Recorder


class Unsliced(torch.Tensor):
    """As MONAI's `MetaTensor`: what is known of its rows must go with them."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            raise ValueError("nothing is known of these rows")
        return super().__torch_function__(func, types, args, kwargs or {})


def record(folder: Path, count: int, changed: Callable[[int], float] = lambda step: 0.0) -> Recording:
    """A run of some steps in this process; `changed` is added to the second parameter's gradient in a step (from 1)."""
    torch.manual_seed(1)
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with Recorder(folder):
        for step in range(1, count + 1):
            optimizer.zero_grad()
            net(torch.ones(4, 3)).square().sum().backward()
            net.bias.grad += changed(step)
            optimizer.step()
    return recording.read(folder)


def test_the_first_that_differs_is_named(tmp_path: Path) -> None:
    ours = record(tmp_path / "0", 9)
    theirs = record(tmp_path / "1", 9, lambda step: 1e-4 if step == 4 else 0.0)
    found = steps.differences(ours, theirs)
    assert [step.relative for step in found[:3]] == [0.0] * 3
    assert all(step.relative > 1e-6 for step in found[3:])
    assert found[3].parameter == "Linear.bias"
    assert steps.apart([theirs, theirs]) is None


def test_ranks_that_part_are_found(tmp_path: Path) -> None:
    ranks = [record(tmp_path / "0", 5), record(tmp_path / "1", 5, lambda step: 1.0 if step == 3 else 0.0)]
    found = steps.apart(ranks)
    assert found is not None
    assert (found.step, found.parameter, found.who) == (3, "Linear.bias", "rank 0 and rank 1")


def test_parameters_are_called_by_their_model_s_class(tmp_path: Path) -> None:
    script = """
import torch
from torch import nn
class D(nn.Linear):
    pass
class G(nn.Linear):
    pass
netD, netG = D(3, 2), G(3, 2)
for net in (netG, netD):
    net.weight.data.fill_(0.5)
made = [torch.optim.SGD(each.parameters(), lr=lr) for each in (netD, netG)]
for each, optimizer in zip((netD, netG), made):
    each(torch.ones(4, 3)).sum().backward()
    optimizer.step()
"""
    for rate in ("0.1", "0.2"):
        with Recorder(tmp_path / rate):
            exec(compile(script.replace("lr=lr", f"lr={rate}"), str(tmp_path / "train.py"), "exec"), {})
    found = steps.differences(*(recording.read(tmp_path / rate) for rate in ("0.1", "0.2")))
    assert [each.parameter for each in found] == ["D.weight", "G.weight"]


def test_a_batch_counts_when_it_is_taken_and_each_pass_of_the_same_workers_by_itself(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(torch.arange(6)), 2, num_workers=1, persistent_workers=True)
    with Recorder(tmp_path):
        next(iter(loader))  # the worker has fetched more by then
        assert len(list(loader)) == 3
    found = {place: batch.indices for place, batch in recording.read(tmp_path).batches.items()}
    assert found == {(0, 0): [0, 1], (1, 0): [0, 1], (1, 1): [2, 3], (1, 2): [4, 5]}


def test_a_line_that_is_half_written_counts_as_none(tmp_path: Path) -> None:
    record(tmp_path, 2)
    events = tmp_path / "events.jsonl"
    whole = events.read_bytes()
    events.write_bytes(whole[: whole.rindex(b'{"kind": "step"') + 9])
    assert len(recording.read(tmp_path).steps) == 1


@pytest.mark.parametrize("shape", [(1,), (7,), (64, 1, 3, 3), (3000, 40)])
@pytest.mark.parametrize("how", ["noise", "shift", "scale", "one entry"])
def test_a_sketch_tells_how_far_tensors_are_apart(shape: tuple[int, ...], how: str) -> None:
    """Within a factor of three: it tells by signs, of which another draw would tell otherwise."""
    generator = torch.Generator().manual_seed(1)
    tensor = torch.randn(shape, generator=generator)
    other = tensor.clone()
    if how == "one entry":
        other.view(-1)[-1] += 1e-3
    else:
        other += {"noise": torch.randn(shape, generator=generator), "shift": 1.0, "scale": tensor}[how] * 1e-3
    told = steps._relative(state.sketch(tensor), state.sketch(other), 0.0)
    true = float((tensor - other).double().norm() / tensor.double().norm())
    assert true / 3 < told < true * 3
    assert steps._relative(state.sketch(tensor), state.sketch(tensor.clone()), 0.0) == 0.0
    assert state.sketch(tensor.as_subclass(Unsliced)) == state.sketch(tensor)


def test_one_bit_is_seen_and_what_is_not_finite_counts_once() -> None:
    tensor = torch.ones(9000, dtype=torch.float64)
    other = tensor.clone()
    other[8999] += 2**-40
    assert steps._relative(state.sketch(tensor), state.sketch(other), 0.0) > 0
    broken = torch.full((3,), float("nan"))
    assert steps._relative(state.sketch(broken), state.sketch(broken * 2), 0.0) == 0.0
    assert steps._relative(state.sketch(tensor), state.sketch(broken), 0.0) == float("inf")
