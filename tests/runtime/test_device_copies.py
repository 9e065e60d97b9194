"""Copies from the device to the host in steady training: a rank's step waits for its device where the original does.

Counted on pretend devices, in the steps 17 to 31: what the runtime looks at now and then, it looks at in the steps
whose number is a power of two.
"""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any, Callable

import pytest
import torch
from dp2ddp_runtime import loader as loaders
from dp2ddp_runtime import model as models
from modules import Made
from nets import Net, data, data_parallel, device, seeded
from pretend_cuda import Copy, copies, reset_copies
from rank_pool import RankPool
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

FIRST, BEHIND = 17, 32


def pixels() -> nn.Module:
    """With an output of more than a megabyte, which stays where its rows are."""
    conv = nn.Conv2d(1, 5, 3, padding=1)
    return Made(lambda self, x: self.conv(F.interpolate(x, scale_factor=8)), conv=conv)


class Run:
    """A training, as its steps find it. One layer of the model is used by no step (`Net.unused`).

    Args:
        original: whether it is the original's, under `nn.DataParallel`.
    """

    def __init__(self, original: bool) -> None:
        wrap = data_parallel(2) if original else models.wrap_model
        self.net: Any = wrap(seeded(lambda: Net(0.5), torch.float32))
        self.head: Any = wrap(seeded(pixels, torch.float32))
        self.optimizer = torch.optim.SGD([*self.net.parameters(), *self.head.parameters()], lr=0.01, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cuda")
        self.steps = 0
        self.told: Any = torch.zeros(3, device=device())

    def update(self, loss: Tensor) -> None:
        """The usual three lines."""
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def metrics(run: Run, x: Tensor, y: Tensor) -> None:
    out = run.net(x)
    loss = F.cross_entropy(out, y)
    run.update(loss)
    correct = (out.argmax(1) == y).sum()
    run.told += torch.stack([correct, loss.detach() * len(y), out.softmax(1).amax(1).mean()])
    run.steps += y.size(0)


def scaled(run: Run, x: Tensor, y: Tensor) -> None:
    """`GradScaler.step` looks whether there was an overflow, here as in the original."""
    run.optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = F.cross_entropy(run.net(x), y)
    run.scaler.scale(loss).backward()
    run.scaler.unscale_(run.optimizer)
    nn.utils.clip_grad_norm_(run.net.parameters(), 1.0)
    run.scaler.step(run.optimizer)
    run.scaler.update()


def large_output(run: Run, x: Tensor, y: Tensor) -> None:
    out = run.head(x)
    wanted = F.interpolate(x, scale_factor=8).mul(5).long()[:, 0].clamp(max=4)
    run.update(F.cross_entropy(out, wanted) + 0.1 * out.mean())


def is_collective(found: Copy) -> bool:
    """Whether it was made by gloo, which stands for NCCL here: that copies nothing to the host."""
    if not found.lines:
        return True  # a thread of gloo's
    name, _, number = found.lines[0].partition(":")
    text = linecache.getline(str(Path(models.__file__).with_name(name)), int(number))
    return any(f".{call}(" in text for call in ("allgather", "broadcast", "allreduce", "alltoall_base"))


def copied(original: bool, step: Callable[[Run, Tensor, Tensor], None]) -> list[str]:
    """The lines from which something was copied to the host, each as often as it was."""
    run = Run(original)
    loader = DataLoader(TensorDataset(*data(16 * BEHIND, torch.float32)), 16, shuffle=True)
    try:
        for number, (x, y) in enumerate(loaders.shard_loader(loader), 1):
            if number == FIRST:
                reset_copies()
            if number == BEHIND:
                break
            step(run, x.to(device()), y.to(device()))
        found = [each for each in copies() if not is_collective(each)]
        return [" < ".join(each.lines[:2]) for each in found for _ in range(each.times)]
    finally:
        reset_copies()


@pytest.mark.parametrize("ranks", ["cuda"], indirect=True)
@pytest.mark.parametrize(
    ("step", "of_original", "of_rank"),
    [
        (metrics, 0, 0),
        (scaled, 1, 1),
        (large_output, 0, 0),
    ],
)
def test_a_steady_step_waits_for_the_device_no_more_often(
    ranks: RankPool, step: Any, of_original: int, of_rank: int
) -> None:
    found = ranks(2, copied, False, step)
    assert [len(lines) for lines in found] == [of_rank * (BEHIND - FIRST)] * 2, found
    assert len(ranks.original(copied, True, step)) == of_original * (BEHIND - FIRST)


def buffers_alone() -> tuple[bool, list[float]]:
    """Whether the buffer came along to the device, and what the forward made of it."""
    net = models.wrap_model(Made(lambda self, x: x * self.factor, factor=torch.tensor(3.0)))
    out = net(torch.arange(4.0).to(device()))
    return net.module.factor.device == device(), out.tolist()


@pytest.mark.parametrize("ranks", ["cuda"], indirect=True)
def test_buffers_alone_are_moved_by_the_first_forward(ranks: RankPool) -> None:
    assert ranks(2, buffers_alone) == [(True, [0.0, 3.0, 6.0, 9.0])] * 2
