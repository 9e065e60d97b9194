"""Half precision on pretend devices, step by step as under `nn.DataParallel`: autocast, and what `GradScaler` does."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from dp2ddp_runtime import loader as loaders
from dp2ddp_runtime import model as models
from nets import Net, Parameters, data, data_parallel, device, difference, seeded, snapshot
from rank_pool import RankPool
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

STEPS = 24
#: What the last row's loss is multiplied by: in which step, and for which of several models.
SPOILED = {(11, 0): float("inf"), (14, 1): float("nan"), (17, 0): float("nan")}


class Step(NamedTuple):
    """What came of a step: which optimizers made it, and each model's parameters and buffers."""

    scale: float
    made: list[int]
    params: list[Parameters]


def train(original: bool) -> list[Step]:
    """Batches of 16, 16, 16 and 7 rows; a model each for two optimizers, and one scaler for them; clipped."""
    wrap = data_parallel(2) if original else models.wrap_model
    nets = [wrap(seeded(lambda: Net(0.3), torch.float32, seed)) for seed in range(2)]
    optimizers = [torch.optim.SGD(nets[0].parameters(), lr=0.01), torch.optim.AdamW(nets[1].parameters(), lr=0.01)]
    made: list[int] = []
    for place, optimizer in enumerate(optimizers):
        optimizer.register_step_post_hook(lambda *_, place=place: made.append(place))
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=3)
    loader = loaders.shard_loader(DataLoader(TensorDataset(*data(55, torch.float32)), 16, shuffle=True))
    history: list[Step] = []
    while len(history) < STEPS:
        for x, y in loader:
            x, y = x.to(device()), y.to(device())
            for place, (net, optimizer) in enumerate(zip(nets, optimizers)):
                weight = torch.ones(len(y), device=y.device)
                weight[-1] = SPOILED.get((len(history), place), 1.0)
                optimizer.zero_grad()
                with torch.autocast("cuda", torch.float16):
                    loss = (F.cross_entropy(net(x), y, reduction="none") * weight).mean()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            history.append(Step(scaler.get_scale(), list(made), [snapshot(net) for net in nets]))
            made.clear()
    return history[:STEPS]


@pytest.mark.parametrize("ranks", ["cuda"], indirect=True)
def test_each_step_is_data_parallels(ranks: RankPool) -> None:
    expected = ranks.original(train, True)
    for history in ranks(2, train, False):
        assert [step[:2] for step in history] == [step[:2] for step in expected]
        for number, (step, original) in enumerate(zip(history, expected)):
            assert [difference(*pair) for pair in zip(step.params, original.params)] == [0.0, 0.0], number
    skipped = {number: step.made for number, step in enumerate(expected) if step.made != [0, 1]}
    assert skipped == {11: [1], 14: [0], 17: [1]}
    scales = [step.scale for step in expected]
    assert {after / before for before, after in zip(scales, scales[1:])} == {0.5, 1.0, 2.0}
