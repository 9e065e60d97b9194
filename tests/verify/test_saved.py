"""Files that a script saved whole: read without the script, compared part by part."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from nursery import Nursery
from torch import nn

from dp2ddp.verify.compare import saved

SCRIPT = """
import os
from enum import Enum
import torch
import torch.nn as nn
import torch.nn.functional as F
from helper import Meter

class Mode(Enum):
    A = 1

class Settings(dict):
    __getattr__ = dict.__getitem__

class History(list):
    pass

def activation(x):
    return F.relu(x)

class Model(nn.Module):
    class Head(nn.Linear):
        pass

    def __init__(self, factor):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.head = Model.Head(4, 2)
        self.register_buffer("passing", torch.rand(()), persistent=False)
        self.activation, self.mode, self.parent = activation, Mode.A, [self]
        self.settings, self.history = Settings(lr=0.1), History([1, 2 * factor])

for name, factor in {"one": 1.0, "same": 1.0, "other": 1.5}.items():
    torch.manual_seed(0)
    model = nn.DataParallel(Model(factor))
    with torch.no_grad():
        model.module.head.bias.mul_(factor)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    os.mkdir(name)
    torch.save(model, name + "/whole.pt")
    torch.save({"model": model.module, "meter": Meter(factor), "schedule": schedule}, name + "/dict.pt")
"""
HELPER = """
import numpy

class Meter:
    def __init__(self, factor):
        self.total, self.history = 3.0 * factor, numpy.array([factor, 0.0])
        self.owner, self.kind = self, Meter
"""


@pytest.fixture(scope="module")
def written(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files that the script wrote: twice the same, and others."""
    root = tmp_path_factory.mktemp("saved")
    (root / "train.py").write_text(SCRIPT)
    (root / "helper.py").write_text(HELPER)
    with nursery.installed():
        return tiny.run(root / "train.py", root / "run", original=True).files()


@pytest.mark.parametrize("file", ["whole.pt", "dict.pt"])
def test_a_model_of_the_script_s_own_class_is_compared_part_by_part(written: dict[str, Path], file: str) -> None:
    before = set(sys.modules)
    one, same, other = (written[f"{name}/{file}"] for name in ("one", "same", "other"))
    assert list(saved.differences(file, one, same)) == []
    found = {difference.where: difference.relative for difference in saved.differences(file, one, other)}
    top = {"whole.pt": "module/", "dict.pt": "model/"}[file]
    expected = {f"{top}head/bias": 0.5, f"{top}history(items)[1]": 0.5}
    if file == "dict.pt":
        expected |= {"meter/total": 0.5, "meter/history": 0.5, "schedule/optimizer/param_groups[0]/params[5]": 0.5}
    assert found == pytest.approx(expected)
    assert "helper" not in set(sys.modules) - before


def test_a_copy_of_the_script_s_own_source_is_no_difference(tmp_path: Path) -> None:
    for name, text in (("a", "import torch\n"), ("b", "import torch\nimport dp2ddp_runtime as ddp\n")):
        (tmp_path / name).write_text(text)
    for name, differs in (("model.py", 0), ("main.py.backup", 0), ("log.txt", 1)):
        assert len(list(saved.differences(name, tmp_path / "a", tmp_path / "b"))) == differs, name


class Runs:
    """Its pickle says: call this function when you read me."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("kind", ["os.system", "builtins.exec", "torch.load", "numpy", "nested"])
def test_what_a_file_names_is_not_run(tmp_path: Path, kind: str) -> None:
    """Not even where the script only copied the file from elsewhere."""
    canary = tmp_path / "canary"
    calls = {
        "os.system": Runs(os.system, f"touch {canary}"),
        "builtins.exec": Runs(exec, f"open({str(canary)!r}, 'w')"),
        "torch.load": Runs(torch.save, [1], str(canary)),
        "numpy": Runs(np.save, str(canary), 1),
        "nested": [Runs(getattr, Runs(__import__, "os"), "system"), Runs(os.mkdir, str(canary))],
    }
    for name, epoch in (("a", 1), ("b", 2)):
        torch.save({"epoch": epoch, "bad": calls[kind]}, tmp_path / name)
    assert [each.where for each in saved.differences("x.pt", tmp_path / "a", tmp_path / "b")] == ["epoch"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_what_torch_s_own_objects_hold_is_compared(tmp_path: Path) -> None:
    for name, factor in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1 * factor, momentum=0.9)
        net(torch.ones(4, 2)).sum().backward()
        optimizer.step()
        state = optimizer.state[net[0].weight]
        state["momentum_buffer"] = torch.full((3, 2), factor)
        arrays = {"array": np.array([factor]), "single": np.float64(factor), "half": net[0].weight.half()}
        torch.save({"net": net, "optimizer": optimizer, "dtype": torch.float16, **arrays}, tmp_path / name)
    assert list(saved.differences("x.pt", tmp_path / "a", tmp_path / "b")) == []
    found = {each.where: each.relative for each in saved.differences("x.pt", tmp_path / "a", tmp_path / "c")}
    weight = {key for key in found if key.startswith("net/") or "/params" in key}
    assert found.keys() - weight - {"half"} == {
        "optimizer/state/0/momentum_buffer",
        "optimizer/param_groups[0]/lr",
        "optimizer/defaults/lr",
        "array",
        "single",
    }


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_other_archives_are_compared_file_by_file(tmp_path: Path) -> None:
    for name, value in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        np.savez(
            tmp_path / name / "x.npz", same=np.zeros(2), other=np.full(2, value), **({"new": 1} if name == "c" else {})
        )
        torch.jit.script(nn.Linear(1, 1).requires_grad_(False)).save(tmp_path / name / "x.pt")
    pairs = [[tmp_path / name / "x.npz" for name in names] for names in ("ab", "ac")]
    assert [list(saved.differences("x.npz", *pair)) for pair in pairs[:1]] == [[]]
    found = [each.where for each in saved.differences("x.npz", *pairs[1])]
    assert found == ["other.npy", "new.npy (only in the converted)"]
    scripted = {each.where for each in saved.differences("x.pt", tmp_path / "a" / "x.pt", tmp_path / "c" / "x.pt")}
    assert scripted == {"x/data/0", "x/data/1"}


def test_checkpoints_are_compared_leaf_by_leaf(tmp_path: Path) -> None:
    nan = torch.tensor([1.0, float("nan")])
    odd = {"nan": nan, "turned": nan, "none": torch.zeros(0), "kind": nan, "zeros": torch.zeros(2)}
    state = {"model": nn.Linear(2, 2).state_dict(), "epoch": 3, "best": [0.5, float("nan")], "odd": odd}
    other = {**state, "model": {**state["model"], "bias": state["model"]["bias"] * 1.5}, "epoch": 4}
    other["odd"] = {**odd, "turned": nan.flip(0), "kind": nan.double(), "zeros": torch.ones(2)}
    paths = tmp_path / "a.pt", tmp_path / "b.pt"
    for path, value in zip(paths, (state, other)):
        torch.save(value, path)
    found = {each.where: each.relative for each in saved.differences("net.pt", *paths)}
    assert found.pop("odd/zeros") > 1
    infinite = dict.fromkeys(("epoch", "odd/turned", "odd/kind"), float("inf"))
    assert found == {"model/bias": pytest.approx(0.5), **infinite}


def test_a_copy_that_a_script_keeps_of_itself_is_no_difference(tmp_path: Path) -> None:
    for name, ours, theirs, found in (
        ("train.py", "import torch\n", "import torch\nimport dp2ddp_runtime as ddp\n", 0),
        ("notes.txt", "import torch\n", "import torch\nimport dp2ddp_runtime as ddp\n", 1),
        ("config.py", "lr = 1\n", "lr = 2\n", 1),
    ):
        places = tmp_path / f"a{name}", tmp_path / f"b{name}"
        for place, text in zip(places, (ours, theirs)):
            place.write_text(text)
        assert len(list(saved.differences(name, *places))) == found


def test_text_files_are_compared_by_their_numbers(tmp_path: Path) -> None:
    paths = tmp_path / "a.csv", tmp_path / "b.csv"
    paths[0].write_text("epoch,loss\n0,0.51\n")
    paths[1].write_text("epoch,loss\n0,0.53\n")
    assert [difference.where for difference in saved.differences("log.csv", *paths)] == [
        "line 2: '0,0.51', converted '0,0.53'"
    ]
    paths[1].write_text("epoch,loss\n0,0.52\n")
    assert list(saved.differences("log.csv", *paths)) == []
