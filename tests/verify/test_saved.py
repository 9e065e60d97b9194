"""Files that a script saved whole: read without the script, compared part by part."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from nursery import Nursery
from torch import nn

from dp2ddp.verify.compare import saved, unpickle
from dp2ddp.verify.run import runs

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
class Meter:
    def __init__(self, factor):
        self.total = 3.0 * factor
"""


@pytest.fixture(scope="module")
def written(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files that the script wrote: twice the same, and others."""
    root = tmp_path_factory.mktemp("saved")
    (root / "train.py").write_text(SCRIPT)
    (root / "helper.py").write_text(HELPER)
    with nursery.installed(), runs.start_original(root / "train.py", [], root / "run", runs.Options()) as running:
        run = running.wait()
    assert run.exit_code == 0, run.stderr
    return run.files()


@pytest.mark.parametrize("file", ["whole.pt", "dict.pt"])
def test_a_model_of_the_script_s_own_class_is_compared_part_by_part(written: dict[str, Path], file: str) -> None:
    before = set(sys.modules)
    one, same, other = (written[f"{name}/{file}"] for name in ("one", "same", "other"))
    assert list(saved.differences(file, one, same)) == []
    found = {difference.where: difference.relative for difference in saved.differences(file, one, other)}
    top = {"whole.pt": "module.", "dict.pt": "model/"}[file]
    expected = {f"{top}head.bias": 0.5, f"{top}history(items)[1]": 0.5}
    if file == "dict.pt":
        expected["meter/total"] = 0.5
    assert found == pytest.approx(expected)
    assert "helper" not in set(sys.modules) - before


def test_the_parts_are_named_as_a_state_dict_names_them(written: dict[str, Path]) -> None:
    found = saved.leaves(unpickle.load(written["one/dict.pt"]))
    tensors = {key for key, value in found.items() if isinstance(value, torch.Tensor)}
    names = ["body.0.weight", "body.0.bias", "head.weight", "head.bias"]
    names += [f"body.1.{name}" for name in nn.BatchNorm1d(4).state_dict()]
    assert tensors == {f"model/{name}" for name in names}
    assert found["model(class)"] == "__main__.Model"
    assert found["model/parent[0]"] == "(itself)"
    assert found["schedule/step_size"] == 3
