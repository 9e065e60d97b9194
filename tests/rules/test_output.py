"""Files that are opened: by rank 0 for writing, by all for reading, whichever way the script opens them."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = """\
import bz2, codecs, gzip, json, os, pickle, shutil, sqlite3, tarfile, zipfile
from pathlib import Path
import comet_ml, cv2, h5py, imageio, mlflow, neptune, scipy.io, skimage.io, torchvision, visdom, wandb, yaml
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch, torch.nn as nn
from PIL import Image
from tensorboardX import SummaryWriter
from torchvision.transforms import ToPILImage
net = nn.DataParallel(nn.Linear(4, 2))
"""

#: What is written into memory is there on every rank.
IN_MEMORY = (
    "import io\nbuffer = io.BytesIO()\nplt.savefig(buffer, format='png')\nImage.open(buffer)\n",
    "from io import BytesIO\nwith BytesIO() as b:\n    Image.open(p).save(b, format='PNG')\n    send(b.getvalue())\n",
    "import io\ndef curve(fig):\n    out = io.StringIO()\n    pd.DataFrame(fig).to_csv(out)\n    return out\n",
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

OPENED = {
    "with Path('log.csv').open('w') as f:\n    pass\n": "with ddp.open(Path('log.csv'), 'w') as f:",
    "f = (folder / 'a').open(mode='at', encoding='utf-8')\n": "ddp.open(folder / 'a', mode='at', encoding='utf-8')",
    "def save(x, path):\n    with path.open('wb', 0) as f:\n        f.write(x)\n": "with ddp.open(path, 'wb', 0) as f:",
    "p.open('w').write('x')\ntext = p.open().read()\n": "text = ddp.open(p).read()",
    "open('x.txt', 'w')\nprint(open('x.txt').read())\n": "print(ddp.open('x.txt').read())",
}
#: By where the object comes from, not by how its method is spelled. Each with what of it becomes rank 0's.
WRITTEN = {
    "img = Image.open(p)\nimg.save(q)\n": "img.save",
    "Image.fromarray(a).save(q)\n": "Image.fromarray(a).save",
    "ToPILImage()(x).save(q)\n": "ToPILImage()(x).save",
    "img = Image.open(p).convert('RGB').resize((2, 2))\nimg.save(q)\n": "img.save",
    "def store(im):\n    im.save(q)\nstore(Image.open(p))\n": "im.save",
    "images = [Image.open(p) for p in ps]\nfor one in images:\n    one.save(q)\n": "one.save",
    "class A:\n    def __init__(self):\n        self.im = Image.new('L', (1, 1))\n"
    "    def put(self):\n        self.im.save(q)\nA().put()\n": "self.im.save",
    "unknown(x).save(f'{i}.png')\n": "unknown(x).save",
    "fig, ax = plt.subplots()\nfig.savefig(p)\n": "fig.savefig",
    "plt.gcf().savefig(p)\n": "plt.gcf().savefig",
    "plt.savefig(p)\n": "plt.savefig",
    "df = pd.DataFrame()\ndf.groupby(1).mean().to_json(p)\n": "df.groupby(1).mean().to_json",
    "frame.to_csv(p)\n": "frame.to_csv",
    "np.zeros(3).tofile(p)\n": "np.zeros(3).tofile",
    "np.savez(p, a=1)\n": "np.savez",
    "cv2.imwrite(p, x)\n": "cv2.imwrite",
    "if not cv2.imwrite(p, x):\n    raise OSError(p)\n": "cv2.imwrite",
    "video = cv2.VideoWriter(p, 1, 2, (3, 4))\nvideo.write(x)\n": "cv2.VideoWriter",
    "torchvision.utils.save_image(x, p)\n": "torchvision.utils.save_image",
    "imageio.imwrite(p, x)\n": "imageio.imwrite",
    "imageio.mimsave(p, x)\n": "imageio.mimsave",
    "skimage.io.imsave(p, x)\n": "skimage.io.imsave",
    "scipy.io.savemat(p, {})\n": "scipy.io.savemat",
    "torch.jit.save(m, p)\n": "torch.jit.save",
    "f = h5py.File(p, 'w')\nf['x'] = 1\n": "h5py.File",
    "with zipfile.ZipFile(p, mode='w') as z:\n    z.write(q)\n": "zipfile.ZipFile",
    "with tarfile.open(p, 'w:gz') as t:\n    t.add(q)\n": "tarfile.open",
    "with gzip.open(p, 'wb') as f:\n    pickle.dump(x, f)\n": "gzip.open",
    "codecs.open(p, 'w', 'utf-8').write('x')\n": "codecs.open",
    "db = sqlite3.connect(p)\ndb.execute('insert')\ndb.commit()\n": "sqlite3.connect",
    "writer = SummaryWriter(p)\nwriter.add_scalar('x', 1)\n": "SummaryWriter",
    "wandb.init()\n": "wandb.init",
    "mlflow.log_metric('x', 1)\n": "mlflow.log_metric",
    "e = comet_ml.Experiment()\ne.log_metric('x', 1)\n": "comet_ml.Experiment",
    "v = visdom.Visdom()\nv.line([1])\n": "visdom.Visdom",
    "run = neptune.init_run()\nrun['x'].append(1)\n": "neptune.init_run",
    "model.save_pretrained(p)\n": "model.save_pretrained",
}
#: Each reads what may have been written here, in a file that both name.
READ_BACK = [
    "open(os.path.join(d, 'log.txt'), 'w')\nopen(os.path.join(e, 'log.txt'))\n",
    "class Log:\n    def __init__(self, path):\n        self.path = path\n    def add(self):\n"
    "        open(self.path, 'a')\n    def last(self):\n        return open(self.path)\n",
    "for i in range(3):\n    open(f'{d}/{i}.txt', 'w')\nopen(d + '/2.txt')\n",
    "np.savetxt('a.txt', x)\nopen('a.txt')\n",
    "def read(name):\n    return open(name)\nopen('a.txt', 'w')\nread('a.txt')\n",
]
ONLY_READ = [
    "def read(filename):\n    return open(filename)\ndef write(filename):\n    open(filename, 'w')\n"
    "read('config.txt')\nwrite('log.txt')\n",
    "def read(filename):\n    return open(filename)\ndef write(filename):\n    open(filename, 'w')\n",
    "open(os.path.join(args.out, 'log.txt'), 'w')\nopen(os.path.join(args.out, 'config.txt'))\n",
    "open(args.log, 'w')\nopen(args.config)\n",
    "open(args.out + '/1.txt', 'w')\nopen(os.path.join(args.data, split + '.txt'))\n",
    "os.system('cat log.txt')\nopen('log.txt')\n",
]
LEFT = [
    "json.dump(x, f)\nyaml.dump(x, f)\npickle.dump(x, f)\n",
    "f = h5py.File(p)\ng = h5py.File(p, 'r')\nz = zipfile.ZipFile(p)\nt = tarfile.open(p, 'r:gz')\n",
    "model.save(p)\nnet.module.save('x.png')\n",
    "class A:\n    def savefig(self):\n        pass\nA().savefig()\n",
    "out = subprocess.run(['ls'])\n",
    "pil = Image.open(p)\npil.load()\n",
    "text = Path('notes.txt').open().read()\n",
    "text = Path('notes.txt').open('rt').read()\n",
    "member = zipfile.ZipFile('a.zip').open('b.txt', 'r')\n",
    "archive.open('member', 'w')\n",
    "browser.open('https://x')\n",
    "path.open(*how)\n",
    "path.open(MODE)\n",
    "class Log:\n    def open(self, mode):\n        self.open('w')\nLog().open('a')\n",
    "class Mine(Base):\n    def open(self):\n        super().open('w')\n",
]


def _converted(text: str) -> str:
    return convert_source(_HEAD + text, "train.py", Options(select=frozenset({"DDP011"}))).new_text


@pytest.mark.parametrize("text", OPENED)
def test_opened_by_the_runtime(text: str) -> None:
    assert OPENED[text] in _converted(text)


@pytest.mark.parametrize("text", WRITTEN)
def test_written_by_rank_0(text: str) -> None:
    written = WRITTEN[text]
    assert _converted(text).endswith(text.replace(written + "(", f"ddp.main_only({written})(", 1))


@pytest.mark.parametrize("text", READ_BACK)
def test_what_the_program_may_have_written_is_waited_for(text: str) -> None:
    new = _converted(text)
    assert new.count("open(") == new.count("ddp.open(") == text.count("open(")


@pytest.mark.parametrize("text", ONLY_READ)
def test_what_only_has_a_name_like_it_is_read_as_ever(text: str) -> None:
    new = _converted(text)
    assert new.count("ddp.open(") == text.count("'w'")


@pytest.mark.parametrize(
    "text",
    [
        "db = sqlite3.connect(p)\nrows = db.execute('select').fetchall()\n",
        "db = sqlite3.connect(p)\nfor row in db.cursor().execute('select'):\n    pass\n",
        "f = h5py.File(p, 'r+')\n",
        "f = h5py.File(p, 'a')\n",
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
        np.save(p, 0)
    def compute(self, i):
        p = f'{self.d}/{i}.npy'
        torch.save(i, p + '.tmp')
        os.replace(p + '.tmp', p)
    def __getitem__(self, i):
        np.save(f'{self.d}/{i}.npy', i)
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
    assert "ddp.main_only(np.save)(p, 0)" in new  # also called once
