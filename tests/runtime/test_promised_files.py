"""Promise P6, checkpoints carry over: on pretend devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dp2ddp_runtime as ddp
import pytest
import torch
from rank_pool import RankPool
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset
from training import Net, Parameters, data, data_parallel, device, difference, seeded, snapshot


def save_and_go_on(original: bool, path: Path) -> Parameters:
    """Save after an epoch, and train for another one."""
    net, optimizer = make_pair(original, seed=0)
    train_epoch(net, optimizer)
    states = {"net": net.state_dict(), "bare": net.module.state_dict(), "optimizer": optimizer.state_dict()}
    (torch.save if original else ddp.save)(states, path)
    train_epoch(net, optimizer)
    return snapshot(net)


def load_and_go_on(original: bool, key: str, path: Path) -> Parameters:
    """The other epoch only."""
    net, optimizer = make_pair(original, seed=1)
    states = (torch.load if original else ddp.load)(path)
    load: Any = nn.Module.load_state_dict if original else ddp.load_state_dict
    load(net.module if original and key == "bare" else net, states[key])
    optimizer.load_state_dict(states["optimizer"])
    train_epoch(net, optimizer)
    return snapshot(net)


def make_pair(original: bool, seed: int) -> tuple[Any, torch.optim.Optimizer]:
    wrap = data_parallel(2) if original else ddp.wrap_model
    net = wrap(seeded(Net, torch.float32, seed)).to(device())
    return net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def train_epoch(net: Any, optimizer: torch.optim.Optimizer) -> None:
    for x, y in ddp.shard_loader(DataLoader(TensorDataset(*data(55, torch.float32)), 16)):
        optimizer.zero_grad()
        F.cross_entropy(net(x.to(device())), y.to(device())).backward()
        optimizer.step()


@pytest.mark.parametrize("ranks", ["cuda"], indirect=True)
def test_p6_either_loads_what_the_other_saved(ranks: RankPool, tmp_path: Path) -> None:
    """Whoever saves and whoever loads: the parameters are those of a run that was never interrupted, bit for bit."""
    expected = ranks.original(save_and_go_on, True, tmp_path / "original.pt")
    for result in ranks(2, save_and_go_on, False, tmp_path / "ranks.pt"):
        assert difference(result, expected) == 0
    one, other = (torch.load(tmp_path / name, map_location="cpu") for name in ("original.pt", "ranks.pt"))
    assert {key: list(state) for key, state in one.items()} == {key: list(state) for key, state in other.items()}
    assert next(iter(one["net"])) == "module.conv.weight"
    for name in ("original.pt", "ranks.pt"):
        for key in ("net", "bare"):
            results = ranks(2, load_and_go_on, False, key, tmp_path / name)
            results.append(ranks.original(load_and_go_on, True, key, tmp_path / name))
            assert [difference(result, expected) for result in results] == [0] * 3, (name, key)
