"""Migrations that this project didn't make: by hand, Accelerate, Fabric; each gets its true differences."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dp2ddp.cli import main

HEAD = """
import os
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

class Flipping(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return (x.flip(0) if torch.rand(()) < 0.5 else x), y

generator = torch.Generator().manual_seed(5)
data = Flipping(torch.randn(22, 6, generator=generator), torch.randint(3, (22,), generator=generator))

def model():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(8, 3))
"""
ORIGINAL = """
torch.manual_seed(0)
loader = DataLoader(data, batch_size=8, shuffle=SHUFFLE)
net = nn.DataParallel(model()).cuda()
"""
BY_HAND = """
dist.init_process_group("nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
torch.manual_seed(0)
sampler = DistributedSampler(data, shuffle=SHUFFLE)
loader = DataLoader(data, batch_size=8 // ranks, sampler=sampler)
net = DistributedDataParallel(model().cuda(rank), device_ids=[rank])
"""
ACCELERATE = """
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=SPLIT))
torch.manual_seed(0)
net, loader = accelerator.prepare(model(), DataLoader(data, batch_size=8, shuffle=SHUFFLE))
rank, ranks = accelerator.process_index, accelerator.num_processes
"""
FABRIC = """
from lightning_fabric import Fabric
fabric = Fabric(devices=2, strategy="ddp")
fabric.launch()
torch.manual_seed(0)
net = fabric.setup(model())
loader = fabric.setup_dataloaders(DataLoader(data, batch_size=8, shuffle=SHUFFLE))
rank, ranks = fabric.global_rank, fabric.world_size
"""
TRAIN = """
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for epoch in range(2):
    EPOCH
    total = 0.0
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        total += MEAN
    if FIRST:
        print(f"epoch {epoch} loss {total / len(loader):.4f}")
if FIRST:
    torch.save(net.module.state_dict(), "net.pt")
"""
AVERAGED = "(lambda mean: (dist.all_reduce(mean), mean.item() / ranks)[1])(loss.detach().clone())"


def script(way: str, shuffle: bool = False, **words: str) -> str:
    text = HEAD + way + TRAIN
    given = {
        "SHUFFLE": str(shuffle),
        "EPOCH": "pass",
        "MEAN": AVERAGED,
        "FIRST": "rank == 0",
        "SPLIT": "False",
        "DROPOUT": "0",
        **words,
    }
    for word, value in given.items():
        text = text.replace(word, value)
    return text


@pytest.fixture
def verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def call(converted: str, shuffle: bool = False, **words: str) -> tuple[str, list[str]]:
        (tmp_path / "train.py").write_text(script(ORIGINAL, shuffle, MEAN="loss.item()", FIRST="True", **words))
        (tmp_path / "mine.py").write_text(converted)
        done = CliRunner().invoke(main, ["verify", "train.py", "--converted", "mine.py", "--format", "json"])
        told = json.loads(done.stdout[done.stdout.index("{") :])
        assert done.exit_code == told["exit_code"], done.stdout
        return told["verdict"], [f"{each['kind']}: {each['what']}; {each['cause']}" for each in told["findings"]]

    return call


def test_what_is_right_by_hand_is_shown_to_agree(verified: Any) -> None:
    """Which rank has which rows of a batch doesn't matter where nothing mixes them, nor what samples draw."""
    assert verified(script(BY_HAND)) == ("agree", [])


def test_dropout_of_rows_that_lie_elsewhere_shows_nothing(verified: Any) -> None:
    assert verified(script(BY_HAND, DROPOUT="0.3"), DROPOUT="0.3") == ("not shown", [])
    verdict, found = verified(script(BY_HAND, DROPOUT="0.3").replace("lr=0.1", "lr=0.2"), DROPOUT="0.3")
    assert (verdict, found[0].partition(" of ")[0]) == ("differ", "setting: lr (learning rate)")


def test_what_tutorials_leave_out_is_named(verified: Any) -> None:
    naive = script(BY_HAND, shuffle=True, FIRST="True", MEAN="loss.item()").replace("8 // ranks", "8")
    verdict, found = verified(naive.replace("lr=0.1", "lr=0.1 * ranks"), shuffle=True)
    assert verdict == "differ"
    text = "\n".join(found)
    for wanted in (
        "count: 6 optimizer steps, converted 4",
        "written: net.pt is written by rank 1, too",
        "prints: rank 1 prints, too: 'epoch 0 loss",
        "each rank draws a whole one of its own, so N times the batch size is trained on",
        "shuffle: batch 1 of iteration 1",
        "setting: lr (learning rate) of parameter group 1 of optimizer 1 is 0.1, converted 0.2; it is multiplied",
    ):
        assert wanted in text, text


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        (
            "DistributedDataParallel(model().cuda(rank), device_ids=[rank])",
            "nn.Identity(); net.module = model()\n"
            "net.forward = net.module.forward; net.parameters = net.module.parameters",
            "gradients are not averaged: the model is in no DistributedDataParallel",
        ),
        (AVERAGED, "loss.item()", "printed: printed line 1"),
        (
            "DistributedSampler(data, shuffle=False)",
            "DistributedSampler(data, shuffle=True)",
            "the same samples in another order",
        ),
    ],
)
def test_each_mistake_by_hand_is_named(verified: Any, old: str, new: str, wanted: str) -> None:
    right = script(BY_HAND)
    assert right.count(old) == 1
    verdict, found = verified(right.replace(old, new))
    assert (verdict, wanted in "\n".join(found)) == ("differ", True), found


@pytest.mark.parametrize(
    ("way", "words", "wanted"),
    [
        (ACCELERATE, {"SPLIT": "True"}, "2 samples come twice in this pass: it is padded, or drawn otherwise"),
        (FABRIC, {}, "each rank draws a whole one of its own, so N times the batch size is trained on"),
    ],
)
def test_frameworks_get_their_true_differences(verified: Any, way: str, words: dict[str, str], wanted: str) -> None:
    # (Not imported here: they change the environment.)
    if importlib.util.find_spec("accelerate" if way == ACCELERATE else "lightning_fabric") is None:
        pytest.skip("not installed")
    verdict, found = verified(script(way, **words))
    assert (verdict, wanted in "\n".join(found)) == ("differ", True), found
