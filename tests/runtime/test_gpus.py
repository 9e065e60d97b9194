"""Which GPUs a rank sees: those of rank 0, with its own in first place."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from dp2ddp_runtime import gpus


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four GPUs, or as many as the environment names."""

    def count() -> int:
        text = os.environ.get(gpus.VISIBLE)
        return 4 if text is None else len([each for each in text.split(",") if each])

    monkeypatch.setattr(torch.cuda, "device_count", count)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count() > 0)
    for name in ("DP2DDP_NPROC", "DP2DDP_DEVICE", gpus.VISIBLE):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize(
    ("visible", "ids", "own"),
    [
        (None, None, ["0,1,2,3", "1,0,2,3", "2,1,0,3", "3,1,2,0"]),
        (None, [2, 3], ["0,1,2,3", "0,1,3,2"]),
        ("5,7", [0, 1], ["5,7", "7,5"]),
        ("5,7,6", ["cuda:1", torch.device("cuda:0")], ["5,7,6", "7,5,6"]),
        ("GPU-ab,GPU-cd", None, ["GPU-ab,GPU-cd", "GPU-cd,GPU-ab"]),
        ("MIG-1,MIG-2,MIG-3", [0, 2], ["MIG-1,MIG-2,MIG-3", "MIG-3,MIG-2,MIG-1"]),
    ],
)
def test_the_entries_of_the_first_device_and_of_the_ranks_are_exchanged(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, ids: Any, own: list[str]
) -> None:
    """So `cuda:{ids[0]}` is the rank's own on every rank."""
    if visible:
        monkeypatch.setenv(gpus.VISIBLE, visible)
    wanted = gpus.wanted(ids)
    assert len(wanted) == len(own)
    born = {"visible": gpus.visible(), "ids": wanted, "machine": __import__("socket").gethostname()}
    assert [gpus.take_own(born, rank)[gpus.VISIBLE] for rank in range(len(own))] == own
    assert gpus.device(wanted) == torch.device("cuda", wanted[0])
    assert not gpus.shares(wanted, len(own))


@pytest.mark.usefixtures("four")
def test_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpus.wanted([1]) == [1]
    with pytest.raises(SystemExit, match=r"device_ids asks for cuda:4, and 4 CUDA device\(s\) are visible"):
        gpus.wanted([0, 4])
    with pytest.raises(SystemExit, match="device_ids must name CUDA devices"):
        gpus.wanted(["the first"])
    assert gpus.wanted([0, 1, 2, 3], here=2) == [0, 1], "a launcher says how many"
    monkeypatch.setenv("DP2DDP_NPROC", "6")
    assert gpus.wanted(None) == [0, 1, 2, 3, 0, 1]
    assert gpus.shares(gpus.wanted(None), 6)
    monkeypatch.setenv("DP2DDP_NPROC", "2")
    assert gpus.wanted([3, 2, 1]) == [3, 2]
    monkeypatch.setenv("DP2DDP_DEVICE", "cpu")
    assert gpus.wanted([0, 7, 9]) == [0, 1]
    assert gpus.take_own({"visible": [], "ids": [0, 1], "machine": ""}, 1) == {}


@pytest.mark.usefixtures("four")
def test_a_single_visible_gpu_may_become_several_further_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that sets the variable itself does so behind its imports."""
    assert gpus.at_most() == 4
    monkeypatch.setenv(gpus.VISIBLE, "0")
    assert (gpus.devices(), gpus.at_most()) == (1, 2)
