"""Programs of several files: roles and edits that cross from one to another, also to those picked at run time."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dp2ddp.cli import main
from dp2ddp.convert.pipeline import Conversion, convert_files
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
    done = converted({**once, "late.py": late}, "late.py")
    assert not any(conversion.changed for conversion in done.values())
    (note,) = done["late.py"].notes
    assert note.span.start == (4, 6)
    assert "lib/models.py, which was converted before" in note.what


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


def test_processes_start_before_a_module_that_builds_is_imported() -> None:
    files = {
        "train.py": "import os\nfrom model import net\nprint(net)\n",
        "model.py": "import torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n",
    }
    assert converted(files)["train.py"].new_text.splitlines() == [
        "import os",
        "import dp2ddp_runtime as ddp",
        "ddp.setup()",
        "from model import net",
        "print(net)",
    ]


@pytest.mark.parametrize("loads", [False, True])
def test_a_model_that_an_import_builds_is_noted_unless_its_weights_are_loaded(loads: bool) -> None:
    loading = '    net.load_state_dict(torch.load("a.pt"))\n' * loads
    files = {
        "train.py": "import torch.nn as nn\nimport other\nnet = nn.DataParallel(nn.Linear(4, 2))\n",
        "other.py": "import torch\ndef make():\n    net = torch.nn.Linear(4, 2)\n"
        f"{loading}    return net\nheld = make()\n",
    }
    assert len(converted(files)["other.py"].notes) == (not loads)


def test_device_ids_of_another_file() -> None:
    files = {
        "train.py": "import config\nfrom model import build\nfrom options import args\nprint(build())\n",
        "options.py": "import argparse\nargs = argparse.ArgumentParser().parse_args()\n",
        "config.py": "args = None\n",
        "model.py": "import torch.nn as nn\nfrom options import args\n\n\ndef build():\n"
        "    return nn.DataParallel(nn.Linear(4, 2), device_ids=args.gpus)\n",
    }
    assert "ddp.setup(device_ids=args.gpus)" in converted(files)["train.py"].new_text
    files["model.py"] = files["model.py"].replace("options", "config")
    done = converted(files)
    assert "ddp.setup()" in done["train.py"].new_text
    assert not done["model.py"].notes


def test_device_ids_that_the_only_caller_gives() -> None:
    train = """\
import torch.nn as nn


def main():
    print("go")
    gpus = [0, 1]
    work(gpus=gpus)
    {more}


def work(gpus):
    net = nn.DataParallel(nn.Linear(4, 2), device_ids=gpus)


main()
"""
    assert "ddp.setup(device_ids=[0, 1])" in converted({"train.py": train.format(more="pass")})["train.py"].new_text
    twice = converted({"train.py": train.format(more="work([2])")})["train.py"]
    assert "ddp.setup()" in twice.new_text


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


OPTION = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
opt = parser.parse_args()
{}
"""
USES_OPTION = """\
import torch
import torch.nn as nn
from option import opt
import os

print(opt)
net = nn.DataParallel(nn.Linear(4, 2))
"""


@pytest.mark.parametrize(
    ("last", "order"),
    [
        ("print(opt)", ["import torch.nn as nn", "import dp2ddp_runtime as ddp", "from option import opt"]),
        ("def show():\n    print(opt)", ["from option import opt", "import os", "import dp2ddp_runtime as ddp"]),
    ],
)
def test_the_runtime_is_imported_above_what_prints_while_it_is_imported(last: str, order: list[str]) -> None:
    """A rank is silent from that import on."""
    main = converted({"option.py": OPTION.format(last), "train.py": USES_OPTION})["train.py"]
    lines = main.new_text.splitlines()
    assert [line for line in lines if line in order] == order
    assert lines[lines.index("print(opt)") - 1] == "ddp.setup()"


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


@pytest.mark.parametrize("package", ["tensorboardX", "lib.tensorboardX"])
@pytest.mark.parametrize(
    ("name", "beside", "is_copy"),
    [("SummaryWriter", "", True), ("Own", "", False), ("SummaryWriter", "import tensorboardX\n", False)],
)
def test_a_copy_of_a_known_library_is_that_library(package: str, name: str, beside: str, is_copy: bool) -> None:
    """What has its name and not what it is known for is the project's; what imports the library is around it."""
    folder = package.replace(".", "/")
    writer = f"import time\nclass {name}:\n    def __init__(self):\n        self.log = open(str(time.time()), 'w')\n"
    files = {
        "train.py": f"from torch import nn\nfrom {package} import {name}\n{name}(nn.DataParallel(nn.ReLU()))\n",
        f"{folder}/__init__.py": f"{beside}from .writer import {name}\n",
        f"{folder}/writer.py": writer,
    }
    done = convert_files(files, ["train.py"], Options())
    assert ("ddp.main_only(SummaryWriter)(" in done["train.py"].new_text) == is_copy
    assert (f"{folder}/writer.py" in done) != is_copy
