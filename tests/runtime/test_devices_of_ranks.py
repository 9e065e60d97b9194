"""Which devices ranks take, and how many ranks there are: device_ids, variables, accelerators, backends."""

from __future__ import annotations

import json
import os
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dp2ddp_runtime.base import world
from dp2ddp_runtime.launch import devices, launcher
from dp2ddp_runtime.model.wrapped import wrap_model
from torch import nn


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, None),
        ([], []),
        ("", []),
        ([0, 1], [0, 1]),
        ((2, "cuda:3"), [2, 3]),
        (range(3), [0, 1, 2]),
        ("2,3", None),
        ("0", None),
        ("cuda:1", [1]),
        (1, [1]),
        (torch.device("cuda:1"), [1]),
        ([torch.device("cuda"), 0, "1"], [0, 0, 1]),
        ([-1], [0]),
        ([None], [0]),
    ],
)
def test_device_ids(given: Any, wanted: list[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert devices.parse_device_ids(devices.make_visible(given)) == wanted
    assert os.environ["CUDA_VISIBLE_DEVICES"] == (given if given in ("2,3", "0") else "5")


@pytest.mark.parametrize("given", [[-2], "cpu", "two", [1.5, None], "cuda:x"])
def test_device_ids_that_are_none(given: Any) -> None:
    with pytest.raises(SystemExit, match="device_ids must name CUDA devices"):
        devices.parse_device_ids(given)


def test_process_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DP2DDP_NPROC", raising=False)
    monkeypatch.setenv("DP2DDP_DEVICE", "cpu")
    assert devices.process_count([0, 1]) == 1
    monkeypatch.delenv("DP2DDP_DEVICE")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert devices.process_count(None) == 3
    assert devices.process_count([]) == 1, "a script's way to say CPU"
    assert devices.process_count([2, 0]) == 2
    with pytest.raises(SystemExit, match="asks for cuda:7, cuda:8, but only 3"):
        devices.process_count([0, 7, 8])
    monkeypatch.setenv("DP2DDP_NPROC", "5")
    assert devices.process_count([0]) == 5
    for bad in ("-1", "two"):
        monkeypatch.setenv("DP2DDP_NPROC", bad)
        with pytest.raises(SystemExit, match="DP2DDP_NPROC must be a number"):
            devices.process_count(None)


def test_gpus_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names that the environment has for them, UUIDs too; what a rank counts is what the original counts."""
    assert devices.gpu_variables(None, 2) == [{}, {}], "on the CPU"
    monkeypatch.delenv("DP2DDP_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def gpus(ids: list[int] | None, ranks: int, count: int) -> list[str]:
        given = devices.gpu_variables(ids, ranks)
        assert {each["DP2DDP_GPUS"] for each in given} == {str(count)}
        assert [each["CUDA_VISIBLE_DEVICES"] for each in given] == [each["DP2DDP_GPU"] for each in given]
        return [each["DP2DDP_GPU"] for each in given]

    assert gpus([2, 1], 2, 3) == ["2", "1"]
    assert gpus([0, 0], 2, 3) == ["0", "1"]
    assert gpus(None, 3, 3) == ["0", "1", "2"]
    assert gpus(None, 2, 2) == ["0", "1"]
    assert gpus([2], 2, 3) == ["2", "0"], "torchrun started more ranks than there are device_ids"
    assert gpus([1], 5, 3) == ["1", "0", "2", "1", "0"], "more ranks than devices share them"
    assert gpus([5, 2], 2, 3) == ["2", "0"], "a launcher shows its ranks other devices than the script names"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7, GPU-1a,GPU-2b,9")  # CUDA stops at what it doesn't know
    assert gpus([2, 0], 2, 3) == ["GPU-2b", "7"]
    assert devices.gpu_variables([], 2) == [{}, {}]


def test_how_torch_asks_for_gpus_is_the_user_s_where_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    check, place = "PYTORCH_NVML_BASED_CUDA_CHECK", {"RANK": "1", "WORLD_SIZE": "2"}
    for given in ({**place, check: "0"}, {**place, check: "1"}, {}, {world.PLACE: json.dumps(place)}):
        monkeypatch.setattr(os, "environ", dict(given))
        devices.take_own()
        devices.ask_cuda()
        assert os.environ == given


def test_as_many_ranks_as_devices_at_the_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    place = world.World(world_size=1, ready=True, set_up_at="train.py:3")
    monkeypatch.setattr(world, "_world", place)
    monkeypatch.delenv("DP2DDP_NPROC", raising=False)
    devices.compare_wrap([0, 1])  # on the CPU nobody takes them
    monkeypatch.delenv("DP2DDP_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for fits in (None, [], [0], 1):
        devices.compare_wrap(fits)
    place.world_size, place.local_world_size = 4, 2  # on each of two machines
    for fits in ([0, 1], [3, 1, 0, 2]):
        devices.compare_wrap(fits)
    place.world_size = place.local_world_size = 1
    message = r"names 2 device\(s\) at test_devices_of_ranks.py:\d+, but the ddp.setup\(\) at train.py:3 started 1 rank"
    with pytest.raises(RuntimeError, match=message):
        wrap_model(nn.Linear(1, 1), device_ids=[0, 1])
    monkeypatch.setenv("DP2DDP_NPROC", "1")
    devices.compare_wrap([0, 1])  # as the user wants it
    monkeypatch.delenv("DP2DDP_NPROC")
    place.set_up_at = ""  # in a rank's child
    devices.compare_wrap([0, 1])


def test_other_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `nn.DataParallel` does, one of them trains the model as it is; more aren't taken for the CPU."""
    monkeypatch.delenv("DP2DDP_DEVICE", raising=False)
    monkeypatch.delenv("DP2DDP_NPROC", raising=False)
    count = 1
    kind = SimpleNamespace(
        is_available=lambda: True, current_accelerator=lambda: torch.device("xpu"), device_count=lambda: count
    )
    monkeypatch.setattr(torch, "accelerator", kind, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert (devices.process_count(None), str(devices.choose_device(None, world.World()))) == (1, "xpu")
    assert str(world.device()) == "xpu"
    with pytest.raises(SystemExit, match="not on xpu"):
        devices.choose_device(None, world.World(0, 0, 2, 2))
    count = 2
    with pytest.raises(SystemExit, match="not on xpu"):
        devices.choose_device(None, world.World())
    monkeypatch.setenv("DP2DDP_DEVICE", "cpu")
    assert str(devices.choose_device(None, world.World(0, 0, 2, 2))) == "cpu"


@pytest.mark.parametrize(
    ("ranks", "gpus", "backend"),
    [(2, "2", "nccl"), (2, "4", "nccl"), (2, None, "nccl"), (2, "1", "gloo"), (3, "2", "gloo")],
)
def test_ranks_that_share_a_gpu_use_gloo(
    monkeypatch: pytest.MonkeyPatch, ranks: int, gpus: str | None, backend: str
) -> None:
    """Where a launcher shows each rank one GPU (None), NCCL tells whether two of them are the same."""
    monkeypatch.setenv("DP2DDP_GPUS", gpus or "")
    if gpus is None:
        monkeypatch.delenv("DP2DDP_GPUS")
    place = world.World(world_size=ranks, local_world_size=ranks, device=torch.device("cuda", 0))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert devices.choose_backend(place) == backend
    assert [f"{ranks} ranks share {gpus} GPU" in str(each.message) for each in told] == [True] * (backend == "gloo")


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("RunMode.RUN", "hydra.run.dir='/start/a/it\\'s'"), ("RunMode.MULTIRUN", "hydra.sweep.dir='/m'")],
)
def test_the_ranks_get_the_folder_that_hydra_named(monkeypatch: pytest.MonkeyPatch, mode: str, expected: str) -> None:
    """It is named after the time: each rank would have its own, and not find what rank 0 writes."""
    values = SimpleNamespace(
        mode=mode,
        runtime=SimpleNamespace(cwd="/start"),
        run=SimpleNamespace(dir="a/it's"),
        sweep=SimpleNamespace(dir="/m"),
    )
    config = SimpleNamespace(initialized=lambda: True, get=lambda: values)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # of other tests in this process
    monkeypatch.setattr(launcher.sys, "orig_argv", ["python", "train.py", "lr=0.1"], raising=False)
    plain = launcher.command()
    monkeypatch.setitem(sys.modules, "hydra.core.hydra_config", SimpleNamespace(HydraConfig=config))
    assert launcher.command() == [*plain, expected]


def test_before_setup_the_device_is_whichever_setup_will_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration that is imported first keeps it: `device_ids` aren't known yet, nor the rank of a plain start."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.delenv("DP2DDP_DEVICE", raising=False)
    assert world.device() == torch.device("cuda")
    assert world.device("cuda:0") == "cuda:0"  # a script's own distributed training
    assert world.device_count(8) == 8
    monkeypatch.setenv("WORLD_SIZE", "2")  # of machines, as some scripts have it
    assert world.device_count(8) == 8
    monkeypatch.setenv("DP2DDP_PLACE", json.dumps({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}))
    assert world.device() == world.device("cuda:0") == torch.device("cuda")
    assert world.device_count(8) == 2
    assert world.numbered_device() == torch.device("cuda", 3)
