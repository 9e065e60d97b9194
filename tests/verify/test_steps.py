"""Parameters compared while they are recorded: what is found, what stays on the disk, how far the runs may go."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from dp2ddp.verify.compare import enough
from dp2ddp.verify.compare.enough import Enough, Pass
from dp2ddp.verify.compare.steps import Apart, StepDifference, Steps
from dp2ddp.verify.run.gate import Gate
from dp2ddp.verify.run.recorder import Recorder, StepsDone
from dp2ddp.verify.run.recording import Batch


def record(
    folder: Path, steps: int, changed: Callable[[int], float] = lambda step: 0.0, gate: Gate | None = None
) -> None:
    """A run of some steps in this process; `changed` is added to the second parameter after a step (from 1)."""
    torch.manual_seed(1)
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with Recorder(folder, gate=gate):
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            net(torch.ones(4, 3)).square().sum().backward()
            net.bias.grad += changed(step)
            optimizer.step()


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in ("original", "rank0", "rank1")]


def files(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.bin"))


def test_what_was_compared_is_removed(folders: list[Path]) -> None:
    for folder in folders:
        record(folder, 9)
    steps = Steps(folders, keep=False)
    steps.look()
    assert [step.relative for step in steps.differences] == [0.0] * 9
    assert [files(folder) for folder in folders] == [[9]] * 3  # 0 is what they start from
    kept = Steps(folders)
    assert [files(folder) for folder in folders] == [[9]] * 3
    with pytest.raises(FileNotFoundError):
        kept.finish()  # nothing is made up


def test_of_what_differs_the_first_is_kept_with_the_one_before(folders: list[Path]) -> None:
    record(folders[0], 9)
    for folder in folders[1:]:
        record(folder, 9, lambda step: {4: 1e-4, 7: 50.0}.get(step, 0.0))
    steps = Steps(folders, keep=False, thresholds=(1e-6, 1.0))
    steps.finish()
    assert [step.relative > 1e-6 for step in steps.differences] == [False] * 3 + [True] * 6
    assert steps.differences[3].parameter == "bias"
    assert steps.apart is None
    assert [files(folder) for folder in folders] == [[3, 4, 6, 7, 9]] * 3


def test_ranks_that_part_are_found(folders: list[Path]) -> None:
    record(folders[0], 5)
    record(folders[1], 5)
    record(folders[2], 5, lambda step: 1.0 if step == 3 else 0.0)
    steps = Steps(folders, keep=False)
    steps.finish()
    assert steps.apart is not None
    assert (steps.apart.step, steps.apart.rank, steps.apart.parameter) == (3, 1, "bias")
    assert str(steps.apart) == "step 3: bias differs between rank 0 and rank 1"
    assert steps.differences[-1].relative == 0.0


def test_parameters_of_one_name_are_told_apart_by_their_model(folders: list[Path]) -> None:
    script = """
import torch
from torch import nn
netD, netG = nn.Linear(3, 2), nn.Linear(3, 2)
for net in (netG, netD):
    net.weight.data.fill_(0.5)
made = [torch.optim.SGD(each.parameters(), lr=lr) for each in (netD, netG)]
for each, optimizer in zip((netD, netG), made):
    each(torch.ones(4, 3)).sum().backward()
    optimizer.step()
del each, net
"""
    for folder, rate in zip(folders, ("0.1", "0.2")):
        code = compile(script.replace("lr=lr", f"lr={rate}"), str(folder.parent / "train.py"), "exec")
        with Recorder(folder):
            exec(code, {})
    steps = Steps(folders[:2])
    steps.finish()
    assert [each.parameter for each in steps.differences] == ["netD.weight", "netG.weight"]


def test_steps_are_compared_as_they_come(folders: list[Path]) -> None:
    steps = Steps(folders, keep=False)
    steps.look()
    assert steps.made == [0, 0, 0]
    record(folders[0], 3)
    steps.look()
    assert (steps.made, steps.differences) == ([3, 0, 0], [])
    for folder in folders[1:]:
        record(folder, 2)
    steps.look()
    assert len(steps.differences) == 2
    assert files(folders[0]) == [2, 3]
    steps.look(ended=[1, 2])  # there is nothing to compare the third step with
    assert 3 not in files(folders[0])


def test_one_that_ended_first_is_still_compared(folders: list[Path]) -> None:
    for folder in folders:
        record(folder, 3)
    events = folders[2] / "events.jsonl"
    whole = events.read_bytes()
    events.write_bytes(whole[: whole.rindex(b'{"kind": "step"')])
    steps = Steps(folders, keep=False)
    steps.look(ended=[0])
    assert len(steps.differences) == 2
    events.write_bytes(whole)
    steps.finish()
    assert [step.relative for step in steps.differences] == [0.0] * 3


def test_a_line_that_is_half_written_is_read_later(folders: list[Path]) -> None:
    for folder in folders:
        record(folder, 2)
    whole = (folders[0] / "events.jsonl").read_bytes()
    (folders[0] / "events.jsonl").write_bytes(whole[: whole.rindex(b'{"kind": "step"') + 9])
    steps = Steps(folders)
    steps.look()
    assert steps.made[0] == 1
    (folders[0] / "events.jsonl").write_bytes(whole)
    steps.look()
    assert steps.made[0] == len(steps.differences) == 2


def test_a_run_waits_for_the_comparison(tmp_path: Path, folders: list[Path]) -> None:
    gate = Gate(tmp_path / "gate.json")
    steps = Steps(folders, keep=False, gate=gate)
    for folder in folders[1:]:
        record(folder, 40)
    ahead = threading.Thread(target=record, args=(folders[0], 40), kwargs={"gate": Gate(gate.path)})
    ahead.start()
    try:
        while len(files(folders[0])) < 3:  # the start, and two steps
            time.sleep(0.01)
        time.sleep(0.2)
        assert len(files(folders[0])) == 3
        while ahead.is_alive():
            steps.look()
    finally:
        gate.open(math.inf)
        ahead.join()
    steps.finish()
    assert len(steps.differences) == 40


def test_runs_are_ended_at_the_same_step(tmp_path: Path, folders: list[Path]) -> None:
    gate = Gate(tmp_path / "gate.json")
    steps = Steps(folders, keep=False, gate=gate, enough=lambda steps: len(steps.differences) == 5)
    for folder in folders:  # one after the other: each comes as far as the gate is open
        gate.open(7, last=True)
        with pytest.raises(StepsDone):
            record(folder, 40, gate=Gate(gate.path))
    steps.look()
    assert (steps.stopped, len(steps.differences), steps.made) == (True, 5, [7, 7, 7])
    steps.finish()
    assert len(steps.differences) == 7


def test_without_an_end_a_gate_is_open(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate.json")
    gate.open(math.inf)
    assert not Gate(gate.path).ends_after(10**9)
    gate.open(3, last=True)
    assert [Gate(gate.path).ends_after(steps) for steps in (2, 3)] == [False, True]


def _batches(*iterators: tuple[int, int, bool]) -> list[Batch]:
    """Iterations over loaders: how many batches, the size of the last one, whether steps are made in it."""
    found: list[Batch] = []
    step = 0
    for number, (count, last, trains) in enumerate(iterators):
        for batch in range(count):
            size = last if batch == count - 1 else 8
            found.append(Batch(number, list(range(size)), step))
            step += trains
    return found


def test_passes_are_told_from_evaluations() -> None:
    batches = _batches((3, 5, True), (2, 8, False), (3, 5, True), (2, 8, False), (1, 8, True))
    assert enough.passes(batches, 7) == [
        Pass(0, 3, True),
        Pass(3, 3, False),
        Pass(3, 6, True),
        Pass(6, 6, False),
        Pass(6, None, False),
    ]
    assert enough.passes(batches, 4) == [Pass(0, 3, True), Pass(3, 3, False), Pass(3, None, False)]
    seen = enough.seen(batches, 7, 1)
    assert (seen.passes, seen.ragged, seen.evaluations) == (2, True, 2)


def test_loaders_side_by_side_are_both_trained_on() -> None:
    batches = [
        Batch(number + 2 * epoch, [0], 3 * epoch + step) for epoch in (0, 1) for step in range(3) for number in (0, 1)
    ]
    assert [(each.trains, each.over) for each in enough.passes(batches, 6)] == [(True, 3)] * 2 + [(True, None)] * 2


class _Steps:
    """What `Enough` asks of `Steps`."""

    def __init__(self, batches: list[Batch], made: int, relative: float = 0.0) -> None:
        self.differences = [StepDifference(1, "", relative)] * made
        self.apart: Apart | None = None
        self.recordings = [type("Recording", (), {"batches": batches})()]


EPOCH = (24, 5, True)
EVALUATION = (2, 8, False)


@pytest.mark.parametrize(
    ("iterators", "made", "writes", "is_enough"),
    [
        ((EPOCH, EVALUATION, EPOCH), 24, True, False),  # the next shuffle was not seen
        ((EPOCH, EVALUATION, EPOCH), 26, True, True),
        ((EPOCH, EVALUATION, EPOCH), 26, False, False),
        ((EPOCH, EPOCH), 26, True, False),
        ((EPOCH, EPOCH, EPOCH), 50, False, True),  # what comes at the end only needn't be waited for
        ((EPOCH, EPOCH, EPOCH), 49, False, False),
        (((4, 8, True), EVALUATION, (4, 8, True), EVALUATION, (4, 8, True)), 10, True, False),  # too few steps
        ((EPOCH,), 24, True, False),
        ((), 200, True, False),  # no loader: who knows
    ],
)
def test_what_is_enough(iterators: tuple, made: int, writes: bool, is_enough: bool) -> None:
    asked = Enough(1e-6, exact=True, writes=lambda: writes)
    assert asked(_Steps(_batches(*iterators), made)) == is_enough  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("relative", "exact", "is_enough"),
    [
        (1e-3, True, True),  # they differ: going on shows nothing
        (1e-8, True, False),  # rounding may grow
        (1e-8, False, True),  # in float64 it hasn't, in so many steps
    ],
)
def test_differences_end_both_or_let_them_go_on(relative: float, exact: bool, is_enough: bool) -> None:
    asked = Enough(1e-6, exact=exact, writes=lambda: True)
    assert asked(_Steps(_batches(EPOCH, EVALUATION, EPOCH), 26, relative)) == is_enough  # type: ignore[arg-type]
