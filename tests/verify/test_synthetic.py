"""Stand-ins for torchvision's data sets: `--synthetic-data`."""

from __future__ import annotations

import json
import pickle
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from dp2ddp.cli import main
from dp2ddp.verify import COUNT
from dp2ddp.verify.emulate import synthetic

CIFAR = """
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

if __name__ == "__main__":
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)])
    train = datasets.CIFAR10("nowhere", train=True, download=True, transform=transform)
    test = datasets.MNIST("nowhere", train=False, transform=transforms.ToTensor())
    net = nn.DataParallel(nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.005)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(2):
        total = 0.0
        for x, y in DataLoader(train, 10, shuffle=True):
            optimizer.zero_grad()
            loss = criterion(net(x.cuda()), y.cuda())
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        print("epoch", epoch, "loss %.4f" % (total / len(train)))
    for x, y in DataLoader(test, 4, num_workers=1):
        print("test %.4f" % x.mean().item(), y.tolist())
"""


@pytest.fixture(scope="module")
def made() -> Iterator[Any]:
    """A copy of `torchvision.datasets` whose classes are filled, beside the one that other tests use."""
    pytest.importorskip("torchvision")
    kept = {name: module for name, module in sys.modules.items() if name.startswith("torchvision.datasets")}
    for name in kept:
        del sys.modules[name]
    told: list[str] = []
    synthetic.install(48, told.append)
    import torchvision.datasets as datasets

    datasets.told = told
    yield datasets
    for name in [name for name in sys.modules if name.startswith("torchvision.datasets")]:
        del sys.modules[name]
    sys.modules.update(kept)


@pytest.mark.parametrize(
    ("name", "arguments", "mode", "size", "count", "labels"),
    [
        ("MNIST", {}, "L", (28, 28), 48, range(10)),
        ("FashionMNIST", {"train": False}, "L", (28, 28), 12, range(10)),
        ("KMNIST", {"download": True}, "L", (28, 28), 48, range(10)),
        ("CIFAR10", {"train": False}, "RGB", (32, 32), 12, range(10)),
        ("CIFAR100", {"download": True}, "RGB", (32, 32), 48, range(100)),
    ],
)
def test_samples_are_of_the_kind_that_the_real_class_makes(
    made: Any, name: str, arguments: dict[str, Any], mode: str, size: Any, count: int, labels: range
) -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    kind = getattr(made, name)
    dataset = kind(**{"root": "/nowhere", "transform": lambda image: (image.mode, image.size), **arguments})
    assert isinstance(dataset, made.VisionDataset)
    assert len(dataset) == count
    assert made.told[-1] == f"{name} {'test' if count == 12 else 'train'} ({count} samples)"
    found = [dataset[index] for index in range(count)]
    assert {image[0] for image, _ in found} == {mode}
    assert {image[1] for image, _ in found} == {size}
    assert {type(label) for _, label in found} == {int}
    assert {label for _, label in found} <= set(labels)
    assert "Root location: /nowhere" in repr(dataset)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_subclasses_and_pickles_go_on(made: Any) -> None:
    class Pairs(made.CIFAR10):
        def __init__(self, root: str, **kwargs: Any) -> None:
            super().__init__(root, **kwargs)
            self.count = len(self.data)

        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index), index

    pairs = Pairs("x", download=True)
    assert (pairs.count, pairs[7][1], pairs[7][0][1]) == (48, 7, 7)
    copy = pickle.loads(pickle.dumps(made.CIFAR10("x")))
    assert (copy.data == made.CIFAR10("x").data).all()


def _verify(*arguments: str) -> Any:
    result = CliRunner().invoke(main, ["verify", *arguments])
    return result.exit_code, result.stdout


def test_both_sides_train_on_made_up_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in worker processes; and the verdict says what was made up."""
    pytest.importorskip("torchvision")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(CIFAR)
    code, output = _verify("train.py", "--format", "json", "--synthetic-data", "24")
    told = json.loads(output)
    assert (code, told["verdict"]) == (0, "agree"), output
    assert told["synthetic_data"] == 24
    made = "synthetic data: CIFAR10 train (24 samples), MNIST test (6 samples);"
    assert any(note.startswith(made) for note in told["notes"])
    assert len(told["steps"]) == 6
    losses = told["losses"]["original"]
    assert sum(losses[3:]) < 0.9 * sum(losses[:3])
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train.py"], None),
        (["train.py", "--synthetic-data"], COUNT),
        (["train.py", "--synthetic-data", "--steps", "3"], COUNT),
        (["train.py", "--synthetic-data", "--", "7"], COUNT),
        (["train.py", "--synthetic-data", "12", "--", "7"], 12),
        (["--synthetic-data=12", "train.py"], 12),
        (["train.py", "--", "--synthetic-data"], None),
    ],
)
def test_the_number_of_samples_may_be_left_out(arguments: list[str], expected: int | None) -> None:
    context = main.commands["verify"].make_context("verify", list(arguments))
    assert context.params["synthetic_data"] == expected
    assert context.params["script"] == Path("train.py")
