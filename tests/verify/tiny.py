"""A script that trains in a second, with all that `verify` looks at; and its conversion, right and with mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options as ConvertOptions
from dp2ddp.verify.compare.comparison import Comparison
from dp2ddp.verify.compare.finding import Finding
from dp2ddp.verify.run import runs, scratch
from dp2ddp.verify.run.runs import Run
from dp2ddp.verify.start import client

ORIGINAL = """
import time

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

from sizes import HIDDEN

torch.manual_seed(3)
count = int(open("samples.txt").read())
inputs = torch.randn(count, 4)
targets = (inputs.sum(1) > 0).long()
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
net = nn.DataParallel(nn.Sequential(nn.Linear(4, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
start = time.time()
for epoch in range(3):
    correct = total = 0
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        output = net(x)
        loss = criterion(output, y)
        loss.backward()
        optimizer.step()
        correct += (output.argmax(1) == y).sum().item()
        total += y.size(0)
    print("epoch", epoch, "correct", correct, "of", total, "accuracy %.4f" % (correct / total))
torch.save(net.module.state_dict(), "net.pt")
print("took %.3f s" % (time.time() - start))
"""
OPTIONS = runs.Options(replicas=2)


def lay_out(folder: Path, text: str = ORIGINAL) -> None:
    """A folder with `train.py`, as a user has it."""
    (folder / "train.py").write_text(text)
    (folder / "sizes.py").write_text("HIDDEN = 5\n")
    (folder / "samples.txt").write_text("23\n")


def converted(text: str = ORIGINAL) -> str:
    """The script's conversion."""
    return convert_source(text, "train.py", ConvertOptions()).new_text


def edited(*changes: tuple[str, str]) -> str:
    """The conversion with a mistake: each text replaced that must be there."""
    text = converted()
    for old, new in changes:
        assert old in text, f"{old!r} is not in\n{text}"
        text = text.replace(old, new)
    return text


def run(
    script: Path,
    folder: Path,
    options: runs.Options = OPTIONS,
    arguments: Sequence[str] = (),
    *,
    original: bool = False,
) -> Run:
    """A run that ended well."""
    with runs.start(script, arguments, folder, options, client.ForkServer(), original=original) as running:
        run = running.wait()
    assert not run.exit_code, (run.exit_codes, run.stderr)
    return run


def run_original(workplace: Path, folder: Path) -> Run:
    scratch.fill(folder / "work", workplace)
    return run(folder / "work" / "train.py", folder, original=True)


def run_converted(text: str, workplace: Path, folder: Path) -> Run:
    scratch.fill(folder / "work", workplace)
    (folder / "work" / "train_ddp.py").symlink_to(folder / "script.py")
    (folder / "script.py").write_text(text)
    return run(folder / "work" / "train_ddp.py", folder)


def findings(original: Run, other: Run) -> tuple[Comparison, list[Finding]]:
    comparison = Comparison(original, other)
    return comparison, comparison.findings
