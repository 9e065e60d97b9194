"""What shows, tracks or writes past Python is rank 0's; what Python writes needs no edit."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_files, convert_source
from dp2ddp.rules import Options

_HEAD = """\
import json, os, pickle, shutil, sqlite3
import cv2, h5py, imageio, torchvision, visdom
import matplotlib.pyplot as plt
import numpy as np, pandas as pd
import torch, torch.nn as nn
import deepdish as dd, hdf5storage, lmdb, netCDF4, open3d as o3d, tables
from PIL import Image
from tensorboardX import SummaryWriter
from wandb import log
net = nn.DataParallel(nn.Linear(4, 2))
"""
#: What goes past Python, or elsewhere. Each with what of it becomes rank 0's.
WRITTEN = {
    "cv2.imwrite(p, x)\n": "cv2.imwrite",
    "cv2.imshow('x', x)\n": "cv2.imshow",
    "video = cv2.VideoWriter(p, 1, 2, (3, 4))\nvideo.write(x)\n": "cv2.VideoWriter",
    "f = h5py.File(p, 'w')\nf['x'] = 1\nf = h5py.File(p, 'r')\n": "h5py.File",  # the read waits
    "f = h5py.File(p, how)\n": "h5py.File",  # the runtime sees how
    "f = tables.open_file(p, mode='w')\nf.create_array('/', 'x', x)\n": "tables.open_file",
    "with netCDF4.Dataset(p, 'w') as f:\n    f.title = 'x'\n": "netCDF4.Dataset",
    "hdf5storage.savemat(p, x)\n": "hdf5storage.savemat",
    "dd.io.save(p, x)\n": "dd.io.save",
    "v = o3d.visualization.Visualizer()\nv.create_window()\n": "o3d.visualization.Visualizer",
    "o3d.visualization.draw_geometries([x])\n": "o3d.visualization.draw_geometries",
    "vis = visdom.Visdom()\nvis.line(x)\n": "visdom.Visdom",
    "log({'x': 1})\n": "log",
    "model = net.module\nmodel.save_pretrained(p)\n": "model.save_pretrained",
    "class Bert(nn.Module):\n    def save(self, p):\n        super().save_pretrained(p)\n": "super().save_pretrained",
}
#: What writes by Python's own functions is rank 0's anyway; what is visibly read is there on every rank.
LEFT = [
    "img = Image.open(p).convert('RGB')\nimg.save(q)\nplt.gcf().savefig(p)\nplt.show()\n",
    "with open('log.csv', 'w') as f:\n    f.write('x')\nos.makedirs('out')\nshutil.rmtree('out')\n",
    "os.system('cat log.txt')\nnp.save(p, x)\npd.DataFrame(x).to_csv(p)\ntorchvision.utils.save_image(x, p)\n",
    "writer = SummaryWriter('runs')\nwriter.add_scalar('x', 1)\nwriter.close()\n",
    "f = h5py.File(p)\ne = h5py.File(p, 'r')\nh = netCDF4.Dataset(p, 'r')\nx = cv2.imread(p)\n",
    "db = lmdb.open(p, readonly=True)\n",
    "print(json.dumps(x))\ninput('go on? ')\n",
]
_ONLY = Options(select=frozenset({"DDP011"}))


def converted(text: str) -> str:
    """A conversion, without the runtime's import."""
    return convert_source(_HEAD + text, "train.py", _ONLY).new_text.replace("import dp2ddp_runtime as ddp\n", "")


@pytest.mark.parametrize("text", WRITTEN)
def test_written_by_rank_0(text: str) -> None:
    written = WRITTEN[text]
    assert converted(text).endswith("\n" + text.replace(f"{written}(", f"ddp.main_only({written})("))


@pytest.mark.parametrize("path", ["p", "q"])
def test_what_is_written_and_read_past_python_is_noted(path: str) -> None:
    text = f"def show(p, q):\n    plt.savefig(p)\n    return cv2.imread({path})\n"
    conversion = convert_source(_HEAD + text, "train.py", _ONLY)
    assert ["may come too early" in note.what for note in conversion.notes] == [True] * (path == "p")


def test_what_another_file_writes_is_read_as_it_was() -> None:
    files = {"train.py": f"import made\n{_HEAD}f = h5py.File(p)\n", "made.py": "import h5py\nh5py.File(p, 'w')\n"}
    assert [each.changed for each in convert_files(files, ["train.py"], _ONLY).values()] == [False, True]


def test_a_method_that_may_be_the_program_s_own_or_a_library_s_is_noted() -> None:
    text = "class Net(nn.Module):\n    def save_pretrained(self, p): torch.save({}, p)\n\nx.save_pretrained(p)\n"
    conversion = convert_source(_HEAD + text, "train.py", _ONLY)
    assert not conversion.changed
    assert ["has a `save_pretrained` of its own" in note.what for note in conversion.notes] == [True]


@pytest.mark.parametrize("text", LEFT)
def test_left_alone(text: str) -> None:
    conversion = convert_source(_HEAD + text, "train.py", _ONLY)
    assert not conversion.changed
    assert not conversion.notes


_USE = "wandb.init(config=args)\nwandb.config.lr = 1\nwandb.log({'x': wandb.Image(x)})\nwandb.run.name = p\n"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("import wandb\nimport os\n", "wandb = ddp.main_only(wandb)\n"),
        ("import os, wandb as wb, mlflow\n", "wb = ddp.main_only(wb)\nmlflow = ddp.main_only(mlflow)\n"),
        ("import mlflow, mlflow.pytorch\n", "mlflow = ddp.main_only(mlflow)\n"),
        ("import mlflow.pytorch as mp\n", "mp = ddp.main_only(mp)\n"),
    ],
)
def test_a_tracker_s_module_is_rank_0_s_by_one_line(given: str, line: str) -> None:
    text = _USE.replace("wandb", line.partition(" ")[0])
    assert converted(given + text).endswith(given + line + text)


def test_so_it_is_where_it_is_imported_in_a_block() -> None:
    text = f"try:\n    import wandb\nLINEexcept ImportError:\n    wandb = None\nif wandb:\n    wandb.init()\n{_USE}"
    text += "def close():\n    import mlflow\nlineprint(mlflow)\n    mlflow.end_run()\n"
    before = text.replace("LINE", "").replace("line", "    ")
    after = text.replace("LINE", "    wandb = ddp.main_only(wandb)\n")
    after = after.replace("line", "    mlflow = ddp.main_only(mlflow)\n    ")
    assert converted(before).endswith(after)


def test_a_value_of_the_tracker_s_own_is_noted_once() -> None:
    conversion = convert_source(_HEAD + "import wandb\nlr = wandb.config.lr\nx = wandb.config.x\n", "t.py", _ONLY)
    assert [note.span.start.line for note in conversion.notes] == [12]


def test_torch_s_save_is_the_runtime_s_whatever_is_written_where() -> None:
    text = "import io\nfrom torch import save\ndef unused():\n    save(net, p)\n"
    text += "torch.save(net, io.BytesIO())\ntorch.save(1, p)\n"
    new = convert_source(_HEAD + text, "train.py", Options()).new_text
    assert new.count("ddp.save(") == 3
