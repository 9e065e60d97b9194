"""What shows, tracks or writes past Python is rank 0's; what Python writes needs no edit."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = """\
import bz2, codecs, gzip, json, os, pickle, shutil, sqlite3, tarfile, zipfile
from pathlib import Path
import comet_ml, cv2, h5py, imageio, mlflow, neptune, scipy.io, skimage.io, torchvision, visdom, wandb, yaml
import matplotlib.pyplot as plt
import numpy as np, pandas as pd
import torch, torch.nn as nn
import deepdish as dd, hdf5storage, lmdb, netCDF4, open3d as o3d, tables
from PIL import Image
from tensorboardX import SummaryWriter
from torchvision.transforms import ToPILImage
net = nn.DataParallel(nn.Linear(4, 2))
"""

#: What is written into memory is there on every rank.
IN_MEMORY = (
    "import io\nbuffer = io.BytesIO()\nplt.savefig(buffer, format='png')\nImage.open(buffer)\n",
    "from io import BytesIO\nwith BytesIO() as b:\n    Image.open(p).save(b, format='PNG')\n    send(b.getvalue())\n",
    "import io\ndef curve(x):\n    out = io.StringIO()\n    pd.DataFrame(x).to_csv(out)\n    return out\ncurve(p)\n",
    "import io\ndef put(to):\n    torch.save(net, to)\n    to.seek(0)\nput(io.BytesIO())\n",
)
#: Methods that libraries' models, and own classes derived from them, have from the library.
INHERITED = (
    "model = nn.Linear(4, 2)\nnet = nn.DataParallel(model)\n"
    "whole = net.module if hasattr(net, 'module') else net\n{}whole.save_pretrained{}(p)\n",
    "class Bert(BertModel):\n    pass\nb = Bert()\n{}b.save_pretrained{}(p)\n",
    "class Bert(BertModel, nn.Module):\n    def save_pretrained(self, folder):\n"
    "        {}super().save_pretrained{}(folder)\nBert().save_pretrained(p)\n",
)

#: What goes past Python, or elsewhere. Each with what of it becomes rank 0's.
WRITTEN = {
    "cv2.imwrite(p, x)\n": "cv2.imwrite",
    "video = cv2.VideoWriter(p, 1, 2, (3, 4))\nvideo.write(x)\n": "cv2.VideoWriter",
    "f = h5py.File(p, 'w')\nf['x'] = 1\n": "h5py.File",
    "how = 'a' if os.path.exists(p) else 'w'\nf = h5py.File(p, how)\n": "h5py.File",
    "f = tables.open_file(p, mode='w')\nf.create_array('/', 'x', x)\n": "tables.open_file",
    "with netCDF4.Dataset(p, 'w') as f:\n    f.title = 'x'\n": "netCDF4.Dataset",
    "hdf5storage.savemat(p, x)\n": "hdf5storage.savemat",
    "dd.io.save(p, x)\n": "dd.io.save",
    "v = o3d.visualization.Visualizer()\nv.create_window()\n": "o3d.visualization.Visualizer",
    "o3d.visualization.draw_geometries([x])\n": "o3d.visualization.draw_geometries",
    "db = lmdb.open(p, 9)\nwith db.begin(write=True) as t:\n    t.put(b'x', b'y')\n": "lmdb.open",
    "db = sqlite3.connect(p)\ndb.execute('insert')\ndb.commit()\n": "sqlite3.connect",
    "wandb.init()\n": "wandb.init",
    "e = comet_ml.Experiment()\ne.log_metric('x', 1)\n": "comet_ml.Experiment",
}
#: What writes by Python's own functions is rank 0's anyway.
LEFT = [
    "img = Image.open(p).convert('RGB')\nimg.save(q)\nplt.gcf().savefig(p)\nplt.savefig(p)\n",
    "plt.ion()\nfig, axes = plt.subplots()\nplt.draw()\nplt.pause(0.1)\nplt.show()\n",  # no windows elsewhere
    "with Path('log.csv').open('w') as f:\n    f.write('x')\nos.makedirs('out')\nPath('x').touch()\n",
    "os.system('cat log.txt')\nopen('log.txt')\nshutil.rmtree('out')\n",
    "how = 'r'\nf = h5py.File(p)\ng = h5py.File(p, 'r')\nh = h5py.File(p, how)\n",
    "d = lmdb.open(p, 9)\nt = d.begin()\nf = tables.open_file(p)\nnetCDF4.Dataset(p)\n",
    "model.save(p)\nnet.module.save('x.png')\n",
    "text = Path('notes.txt').open('rt').read()\n",
    "archive.open('member', 'w')\n",
    "path.open(MODE)\n",
    "path = wandb.run.dir\nlr = wandb.config.lr\nrun(wandb.config)\n",  # which is noted
    "if wandb is not None and isinstance(x, (wandb.Image, int)):\n    print(hasattr(x, 'y'))\n",
    "try:\n    import wandb\nexcept ImportError:\n    wandb = None\ncount = 1 if wandb else 2\n",
    "import tensorboard_logger\ntensorboard_logger.configure(p)\nrun(tensorboard_logger)\n",  # writes by Python
]


def _converted(text: str) -> str:
    return convert_source(_HEAD + text, "train.py", Options(select=frozenset({"DDP011"}))).new_text


@pytest.mark.parametrize("text", WRITTEN)
def test_written_by_rank_0(text: str) -> None:
    written = WRITTEN[text]
    assert _converted(text).endswith(text.replace(written + "(", f"ddp.main_only({written})(", 1))


@pytest.mark.parametrize("text", ["config.update(x)", "run.name = p", "run.summary['best'] = 1", "config.lr = 1"])
def test_what_wandb_has_once_it_has_started_is_rank_0s(text: str) -> None:
    """Other ranks don't have it: to look it up there would be an error."""
    assert _converted(f"wandb.{text}\n").endswith(f"ddp.main_only(wandb).{text}\n")


_TWICE = "wandb.init()\nwandb.log({'x': wandb.Image(x)})\n"


@pytest.mark.parametrize("text", [_TWICE, _TWICE + "print(wandb.config.lr)\n"])
def test_a_module_that_is_called_twice_is_rank_0s_by_one_line(text: str) -> None:
    converted = _converted(text)
    line = "import dp2ddp_runtime as ddp\nwandb = ddp.main_only(wandb)\nnet = "
    assert converted == _HEAD.replace("net = ", line) + text
    assert convert_source(converted, "train.py", Options(select=frozenset({"DDP011"}))).new_text == converted


@pytest.mark.parametrize("text", ["isinstance(x, wandb.Image)\n", "wandb = None\n", "class Logger(wandb.Run): pass\n"])
def test_a_module_that_is_used_otherwise_is_rank_0s_call_by_call(text: str) -> None:
    """Where other ranks' stand-in would be an error, or the name is another thing as well."""
    converted = _converted(_TWICE + text)
    assert "main_only(wandb)" not in converted
    assert "ddp.main_only(wandb.init)()" in converted


@pytest.mark.parametrize(
    "text",
    [
        "run(net, {}wandb{})\n",
        "def train(net, log={}wandb{}):\n    log.log({{'a': 1}})\ntrain(net)\n",
        "class T:\n    def __init__(self):\n        self.log = {}wandb{} if net else None\nT()\n",
        "trackers = {{'w': {}mlflow{}}}\n",
        "calls = [print, ({}wandb.log{}, 1)]\n",
    ],
)
def test_a_tracker_that_is_handed_on_is_rank_0s_wherever_it_goes(text: str) -> None:
    assert _converted(text.format("", "")).endswith(text.format("ddp.main_only(", ")"))


@pytest.mark.parametrize(
    "text",
    [
        "db = sqlite3.connect(p)\nrows = db.execute('select').fetchall()\n",
        "db = lmdb.open(p)\nwith db.begin() as t:\n    x = t.get(b'x')\ndb.begin(write=True).put(b'x', x)\n",
        "db = sqlite3.connect(p)\nfor row in db.cursor().execute('select'):\n    pass\n",
    ],
)
def test_what_is_read_and_changed_is_noted(text: str) -> None:
    conversion = convert_source(_HEAD + text, "train.py", Options(select=frozenset({"DDP011"})))
    assert ["main_only" in note.todo for note in conversion.notes] == [True]
    assert conversion.new_text == _HEAD + text


@pytest.mark.parametrize("text", LEFT)
def test_left_alone(text: str) -> None:
    assert _converted(text) == _HEAD + text


@pytest.mark.parametrize("text", IN_MEMORY)
def test_what_is_written_into_memory_is_each_rank_s_own(text: str) -> None:
    assert text in convert_source(_HEAD + text, "s.py", Options()).new_text


@pytest.mark.parametrize("text", INHERITED)
def test_what_a_model_has_from_a_library_writes_on_rank_0(text: str) -> None:
    result = convert_source(_HEAD + text.format("", ""), "s.py", Options(select=frozenset({"DDP011"})))
    assert text.format("ddp.main_only(", ")") in result.new_text


@pytest.mark.parametrize("read", ["self.writer.log_dir", "self.writer.logdir", "self.writer.get_logdir()"])
def test_the_folder_of_a_writer_is_rank_0s(read: str) -> None:
    text = (
        "class T:\n    def __init__(self):\n        self.writer = SummaryWriter()\n"
        f"    def save(self):\n        torch.save(net, os.path.join({read}, 'x.pt'))\nT().save()\n"
    )
    new = convert_source(_HEAD + text, "train.py", Options()).new_text
    assert f"ddp.save(net, os.path.join(ddp.broadcast({read}), 'x.pt'))" in new


def test_other_folders_stay() -> None:
    text = "class Args:\n    log_dir = 'x'\nargs = Args()\nargs.log_dir = 'y'\ntorch.save(net, args.log_dir)\n"
    assert "broadcast" not in convert_source(_HEAD + text, "train.py", Options()).new_text


_CACHING = """\
class Images(torch.utils.data.Dataset):
    def __init__(self, d):
        self.d = d
        self.keep(d + '/list')
    def keep(self, p):
        cv2.imwrite(p, 0)
    def compute(self, i):
        p = f'{self.d}/{i}.npy'
        torch.save(i, p + '.tmp')
        os.replace(p + '.tmp', p)
    def __getitem__(self, i):
        cv2.imwrite(f'{self.d}/{i}.png', i)
        with open(f'{self.d}/{i}.txt', 'w') as f:
            f.write('x')
        self.compute(i)
        self.keep(i)
        return np.load(f'{self.d}/{i}.npy')
loader = torch.utils.data.DataLoader(Images('d'), 4)
for x in loader:
    net(x)
"""


def test_what_is_written_for_one_sample_is_written_by_the_rank_that_loads_it() -> None:
    new = convert_source(_HEAD + _CACHING, "train.py", Options()).new_text
    inside = new[new.index("    def compute") : new.index("loader =")]
    assert inside == _CACHING[_CACHING.index("    def compute") : _CACHING.index("loader =")]
    assert "ddp.main_only(cv2.imwrite)(p, 0)" in new  # also called once


def test_an_animation_that_calls_the_model_for_a_window_is_noted() -> None:
    script = "from matplotlib.animation import FuncAnimation\ndef draw(x):\n    return {}(x)\n"
    script += "FuncAnimation(fig, draw)\nplt.show()\n"
    for called, lines in (("net", [15]), ("len", [])):
        notes = convert_source(_HEAD + script.format(called), "train.py", Options(select=frozenset({"DDP011"}))).notes
        assert [note.span.start.line for note in notes] == lines
