"""Programs of several files: roles and edits that cross from one to another, also to those picked at run time."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dp2ddp.cli import main
from dp2ddp.convert.pipeline import Conversion, convert_files
from dp2ddp.errors import BadInput
from dp2ddp.rules import Options

MODEL = """\
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x):
        return self.fc(x)


def build(name):
    return nn.DataParallel(Net()).cuda()
"""
LOADERS = """\
from torch.utils.data import DataLoader, TensorDataset


def get(data, batch_size):
    train = DataLoader(data, batch_size=batch_size, shuffle=True)
    test = DataLoader(data, batch_size=100)
    return train, test
"""
TRAIN = """\
import torch
from lib import data as datasets
from lib.models import build
import engine


def main():
    torch.manual_seed(0)
    train_loader, test_loader = datasets.get(None, 8)
    net = build("net")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(3):
        engine.train(train_loader, net, optimizer)
        print(epoch, engine.test(test_loader, net))


if __name__ == "__main__":
    main()
"""
ENGINE = """\
import torch
import torch.nn.functional as F


def train(loader, model, optimizer):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test(loader, model):
    correct = 0
    with torch.no_grad():
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum().item()
    return correct
"""
PROJECT = {"train.py": TRAIN, "engine.py": ENGINE, "lib/models.py": MODEL, "lib/data.py": LOADERS}


def converted(files: dict[str, str], *entries: str, **options: object) -> dict[str, Conversion]:
    return convert_files(files, entries or ("train.py",), Options(**options))  # type: ignore[arg-type]


def test_a_wrap_in_a_program_that_was_converted_without_it_is_named() -> None:
    once = {name: conversion.new_text for name, conversion in converted(PROJECT).items()}
    late = "from torch import nn\nfrom lib.models import build\n\nnet = nn.DataParallel(nn.Linear(1, 1))\n"
    with pytest.raises(BadInput, match=r"late\.py:4: .* lib/models\.py, which was converted before"):
        converted({**once, "late.py": late}, "late.py")


@pytest.mark.parametrize(
    ("importing", "used"),
    [
        ("from lib.models import *", "build"),
        ("import lib.models", "lib.models.build"),
        ("import lib.models as m", "m.build"),
    ],
)
def test_a_factory_by_any_import(importing: str, used: str) -> None:
    train = TRAIN.replace("from lib.models import build", importing).replace('build("net")', f'{used}("net")')
    done = converted({**PROJECT, "train.py": train})
    assert "ddp.shard_loader(" in done["lib/data.py"].new_text  # what it returns was called


def test_setup_stands_above_the_imports_of_the_programs_own_modules() -> None:
    """One of them wraps, or opens a log, while it is imported."""
    files = {
        "train.py": "import os\nfrom model import net\nimport sys\nprint(net)\n",
        "model.py": "import torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n",
    }
    assert converted(files)["train.py"].new_text.splitlines() == [
        "import os",
        "import dp2ddp_runtime as ddp",
        "",
        "ddp.setup()",
        "",
        "from model import net",
        "import sys",
        "print(net)",
    ]


def test_conversions_do_not_depend_on_the_order_of_sets() -> None:
    files = {
        **PROJECT,
        "train.py": TRAIN.replace('build("net")', "getattr(zoo, 'net')()").replace(
            "from lib.models import build", "from lib import zoo"
        ),
        "lib/zoo.py": "import torch.nn as nn\n"
        + "".join(
            f"class M{i}(nn.Module):\n    def forward(self, x):\n        return (x,) if x else x\n\n\n"
            f"def make{i}():\n    return nn.DataParallel(M{i}())\n"
            for i in range(9)
        ),
    }
    assert len({str(converted(files)) for _ in range(5)}) == 1


@pytest.mark.parametrize(
    "pick", ['"models." + name', '"models.%s_net" % name', 'f"models.{name}"', '"models.{}".format(name)']
)
@pytest.mark.parametrize("package", [True, False])
def test_modules_that_a_script_picks_at_run_time_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pick: str, package: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    script = "import importlib\nimport sys\n\nname = sys.argv[1]\nwhich = {}\nimportlib.import_module(which).build()\n"
    Path("train.py").write_text(script.format(pick))
    Path("models").mkdir()
    Path("models/big_net.py").write_text(
        "from torch import nn\n\n\ndef build():\n    return nn.DataParallel(nn.Linear(1, 1))\n"
    )
    if package:
        Path("models/__init__.py").touch()
    result = CliRunner().invoke(main, ["convert", "train.py", "--in-place"])
    assert result.exit_code == 0, result.output
    assert "return ddp.wrap_model(nn.Linear(1, 1))" in Path("models/big_net.py").read_text(), result.output
    assert "ddp.setup()\n" in Path("train.py").read_text()


def test_what_a_file_does_when_it_is_started_itself_stays_where_others_import_it() -> None:
    """It never runs there: the trial of a model, with a wrap and a loader of its own."""
    trial = (
        "import torch.nn as nn\nfrom torch.utils.data import DataLoader\n\n\n"
        "def build():\n    return nn.Linear(4, 2)\n\n\n"
        'if __name__ == "__main__":\n    net = nn.DataParallel(build())\n    loader = DataLoader([1], 1)\n'
    )
    train = "import torch.nn as nn\nfrom net import build\n\nnet = nn.DataParallel(build())\n"
    files = {"net.py": trial, "train.py": train}
    files["plain.py"] = "from net import build\n\nprint(build())\n"
    done = convert_files(files, ["train.py", "plain.py"], Options())
    assert [name for name, each in done.items() if each.changed] == ["train.py"]
    assert "wrap_model" in convert_files(files, ["net.py"], Options())["net.py"].new_text
