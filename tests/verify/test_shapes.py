"""Shapes of wraps and loops in which training takes other ways: converted, run beside the original, and equal to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
from commands import command

from dp2ddp.verify.command import verifying

#: Two parts that are wrapped, and a head that is exchanged; then a model that is trained past its forward, with a
#: checkpoint, whose second run leaves other running statistics behind on each rank.
SHAPES = """
import itertools
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    checks = False
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh())
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)
    def encode(self, x):
        made = self.features(x)
        return checkpoint(self.norm, made, use_reentrant=False) if self.checks else self.norm(made)
    def forward(self, x):
        return self.head(self.encode(x))

def make(size, batch):
    x = torch.randn(size, 4)
    return DataLoader(TensorDataset(x, x.argmax(1) % 3), batch, shuffle=True)

def step(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss %.5f" % loss.item())

torch.manual_seed(5)
loader, other = make(31, 8), make(20, 6)
net = Net()
net.norm = nn.DataParallel(net.norm)
net.features = nn.DataParallel(net.features)
net.cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
for epoch in range(2):
    net.train()
    for x, y in loader:
        step(F.cross_entropy(net(x.cuda()), y.cuda()))
    net.eval()
    print("right", sum((net(x.cuda()).argmax(1).cpu() == y).sum().item() for x, y in other))
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, "net.pt")
net.head = nn.Linear(6, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x, y = next(iter(other))
step(F.cross_entropy(net(x.cuda()), y.cuda()))
net = nn.DataParallel(Net()).cuda()
net.module.checks = True
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
for x, y in itertools.islice(loader, 3):
    features = net.module.encode(x.cuda())
    step(F.cross_entropy(net(x.cuda()), y.cuda()) + F.cross_entropy(net.module.head(features), y.cuda()))
"""


def test_shapes_train_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SHAPES)
    result = command("verify", "train.py", "--nproc", "2")
    assert (result.exit_code, "They agree: 12 optimizer steps" in result.output) == (0, True), result.output


TWO_MODELS = """
import logging
import torch
from torch import nn
log = logging.getLogger(__name__)
torch.manual_seed(0)

class D(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.norm = nn.BatchNorm1d(4)

class G(nn.Linear):
    pass

net_d, net_g = nn.DataParallel(D(4, 1)), nn.DataParallel(G(3, 4))
of_d, of_g = torch.optim.SGD(net_d.parameters(), 0.1), torch.optim.SGD(net_g.parameters(), 0.1)
bce = nn.BCEWithLogitsLoss()
for step in range(3):
    fake = net_g(torch.randn(8, 3))
    of_d.zero_grad()
    loss_d = bce(net_d(torch.randn(8, 4)), torch.ones(8, 1)) + bce(net_d(fake.detach()), torch.zeros(8, 1))
    loss_d.backward()
    of_d.step()
    of_g.zero_grad()
    loss_g = bce(net_d(fake), torch.ones(8, 1))
    loss_g.backward()
    of_g.step()
    log.warning("Loss_D %.4f Loss_G %.4f", loss_d.item(), loss_g.item())
torch.save(net_d, "whole.pt")
"""


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("", "", None),  # a model that is saved whole is the original's file, too
        (
            "ddp.wrap_model(D(4, 1))",
            "nn.DataParallel(D(4, 1))",
            "wrapped models that run, and how often: G (1), D (2)",
        ),
        ("loss_d.item(), loss_g", "2 * loss_d.item(), loss_g", "logged line 1: 'Loss_D "),
    ],
)
def test_two_models_and_what_is_logged(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, found: str | None
) -> None:
    monkeypatch.chdir(workplace)
    Path("gan.py").write_text(TWO_MODELS)
    text = tiny.converted(TWO_MODELS)
    assert old in text
    Path("gan_ddp.py").write_text(text.replace(old, new) if old else text)
    with verifying(Path("gan.py"), converted=Path("gan_ddp.py")) as verdict:
        whats = [finding.what for finding in verdict.findings]
    assert (verdict.exit_code, [what for what in whats if found and what.startswith(found)] != []) == (
        (1, True) if found else (0, False)
    ), whats


COUNTED = """
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __init__(self):
        self.seen = 0

    def __len__(self):
        return 24

    def __getitem__(self, index):
        self.seen += 1
        return torch.full((4,), index / 24) + 0.01 * (self.seen % 3) + 0.1 * torch.rand(4)

torch.manual_seed(0)
loader = DataLoader(Data(), 8, shuffle=True, num_workers=2)
net = nn.DataParallel(nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for x in loader:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
"""


def test_a_data_set_that_counts_what_it_loads_is_told(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank loads its own rows, so its count is another one."""
    monkeypatch.chdir(workplace)
    Path("counted.py").write_text(COUNTED)
    with verifying(Path("counted.py")) as verdict:
        assert verdict.exit_code == 1
        first, *_ = verdict.findings
        assert (first.kind, first.step) == ("input", 1)
        assert "of the same samples; they are augmented, transformed or drawn otherwise" in str(first)
