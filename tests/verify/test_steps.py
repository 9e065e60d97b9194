"""Parameters compared while they are recorded: what is found, what stays on the disk, how far the runs may go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from dp2ddp.verify.compare.steps import Steps
from dp2ddp.verify.run import recorder
from dp2ddp.verify.run.options import Options
from dp2ddp.verify.run.recorder import Recorder


def record(
    folder: Path, steps: int, changed: Callable[[int], float] = lambda step: 0.0, options: Options | None = None
) -> None:
    """A run of some steps in this process; `changed` is added to the second parameter after a step (from 1)."""
    torch.manual_seed(1)
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with Recorder(folder, options):
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


def test_the_first_that_differs_is_named(folders: list[Path]) -> None:
    record(folders[0], 9)
    for folder in folders[1:]:
        record(folder, 9, lambda step: 1e-4 if step == 4 else 0.0)
    steps = Steps(folders, keep=False)
    steps.finish()
    assert [step.relative > 1e-6 for step in steps.differences] == [False] * 3 + [True] * 6
    assert steps.differences[3].parameter == "bias"
    assert steps.apart is None


def test_ranks_that_part_are_found(folders: list[Path]) -> None:
    record(folders[0], 5)
    record(folders[1], 5)
    record(folders[2], 5, lambda step: 1.0 if step == 3 else 0.0)
    steps = Steps(folders, keep=False)
    steps.finish()
    assert steps.apart is not None
    assert str(steps.apart) == "step 3: bias differs between rank 0 and rank 1"
    assert steps.differences[-1].relative == 0.0


def test_parameters_of_one_name_are_told_apart_by_their_model(folders: list[Path]) -> None:
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
    for folder, rate in zip(folders, ("0.1", "0.2")):
        code = compile(script.replace("lr=lr", f"lr={rate}"), str(folder.parent / "train.py"), "exec")
        with Recorder(folder):
            exec(code, {})
    steps = Steps(folders[:2])
    steps.finish()
    assert [each.parameter for each in steps.differences] == ["D.weight", "G.weight"]


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


def test_a_run_waits_for_the_comparison(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "AHEAD", 1)
    for folder in folders[1:]:
        record(folder, 40)
    ahead = threading.Thread(target=record, args=(folders[0], 40), kwargs={"options": Options(throttled=True)})
    ahead.start()
    steps = Steps(folders, keep=False)
    try:
        while len(files(folders[0])) < 4:  # the start, and three steps
            time.sleep(0.01)
        time.sleep(0.2)
        assert len(files(folders[0])) == 4
    finally:
        while ahead.is_alive():
            steps.look()
    steps.finish()
    assert len(steps.differences) == 40


def test_a_run_goes_on_alone_when_the_others_have_ended(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "AHEAD", 1)
    for folder in folders[1:]:
        record(folder, 2)
    longer = threading.Thread(target=record, args=(folders[0], 40), kwargs={"options": Options(throttled=True)})
    longer.start()
    steps = Steps(folders, keep=False)
    while longer.is_alive():
        steps.look(ended=[1, 2])
    steps.look(ended=[0, 1, 2])
    assert steps.made == [40, 2, 2]
