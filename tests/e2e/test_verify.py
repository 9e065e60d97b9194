"""Recording and comparing: what they see, and that a difference is found where it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from nursery import Nursery

from dp2ddp.verify.compare import printed
from dp2ddp.verify.compare.batches import is_union
from dp2ddp.verify.run.runs import Options, Run, start
from dp2ddp.verify.run.state import sketch

SCRIPT = """
import sys
import torch
from torch.nn import DataParallel as DP
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
net = DP(torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in torch.utils.data.DataLoader(data, 6, shuffle=True):
        loss = ((net(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "loss %.3f" % loss.item(), x.dtype, len(sys.argv))
torch.save({"net": net.state_dict(), "epoch": epoch}, "net.pt")
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def recorded(script: Path, nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The script as it is, and ended after 3 steps."""
    root = tmp_path_factory.mktemp("runs")
    asked = {"plain": (["--x", "a b"], Options()), "short": ([], Options(steps=3, float64=True))}
    with nursery.installed() as server:
        started = {
            name: start(script, each[0], root / name, each[1], server, original=True) for name, each in asked.items()
        }
        return {name: running.wait() for name, running in started.items()}


def test_a_recording_holds_steps_losses_and_batches(recorded: dict[str, Run]) -> None:
    run = recorded["plain"]
    assert run.exit_code == 0
    assert run.stderr == ""
    (recording,) = run.recordings()
    assert len(recording.steps) == len(recording.losses) == len(recording.batches) == 8
    assert [len(batch.indices) for batch in recording.batches.values()] == [6, 6, 6, 2] * 2
    assert sorted(index for batch in [*recording.batches.values()][:4] for index in batch.indices) == list(range(20))
    assert [iterator for iterator, _ in recording.batches] == [0] * 4 + [1] * 4
    last = recording.steps[7]
    assert [slot.name for slot in last.slots] == [
        f"Sequential.{name}" for name in ("0.weight", "0.bias", "1.weight", "1.bias")
    ]
    saved_state = torch.load(run.work / "net.pt")["net"]
    assert list(map(list, last.sketches)) == [
        sketch(saved_state[slot.name.replace("Sequential", "module")]) for slot in last.slots
    ]


def test_a_script_runs_as_python_runs_it(recorded: dict[str, Run]) -> None:
    lines = recorded["plain"].stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("torch.float32 3")


def test_steps_end_the_script_early_and_float64_is_the_default_dtype(recorded: dict[str, Run]) -> None:
    run = recorded["short"]
    (recording,) = run.recordings()
    assert (run.exit_code, run.stdout, len(recording.steps)) == (0, "", 3)
    assert run.files() == {}
    assert recording.steps[0].slots[0].dtype == "float64"


def test_a_run_that_takes_too_long_is_ended(tmp_path: Path, nursery: Nursery) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time\ntime.sleep(600)\n")
    with nursery.installed() as server:
        running = start(script, [], tmp_path / "run", Options(timeout=0.5), server, original=True)
        with running, pytest.raises(subprocess.TimeoutExpired):
            running.wait()


@pytest.mark.parametrize(
    ("whole", "parts", "expected"),
    [
        ([1, 2, 3, 4, 5], [[1, 2, 3], [4, 5]], True),
        ([1, 2, 3, 4, 5], [[1, 2], [3, 4, 5]], False),
        ([1, 2, 3, 4], [[1, 2], [3, 4], [1]], True),
        ([1, 2, 3, 4], [[1, 2], [3, 4], [1, 2]], False),
        ([5, 5], [[5], [5]], True),
        ([1, 2], [[1, 2], [1, 2]], True),
        ([1, 2, 3, 4], [[1, 3], [2, 4]], False),
        ([1, 2, 3, 4], [[1, 2], [1, 2]], False),
        ([1, 2], [None, None], False),
        (None, [[1], [2]], False),
    ],
)
def test_union_of_shards(whole: list[int] | None, parts: list[list[int] | None], expected: bool) -> None:
    assert is_union(whole, parts) is expected


@pytest.mark.parametrize(
    ("original", "converted", "places"),
    [
        ("loss 0.1234", "loss 0.1236", 2.0),
        ("loss 0.12", "loss 0.125", 0.5),
        ("loss 0.5 at 3", "loss 0.5 at 4", 1.0),
        ("loss nan", "loss 0.5", None),
        ("loss 0.5", "lost 0.5", None),
        ("1e-3 done", "2e-3 done", 1.0),
        ("a", None, None),
    ],
)
def test_printed_numbers_are_compared_in_their_last_place(original: str, converted: str, places: float | None) -> None:
    (difference,) = printed.differences(original, converted or "")
    assert difference.places == places if places is None else difference.places == pytest.approx(places)
