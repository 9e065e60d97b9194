"""Which GPUs a rank sees: those of rank 0, with its own in first place."""

from __future__ import annotations

import os

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
