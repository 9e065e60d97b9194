"""Every loader of a converted file is sharded where it is made, once; which model it feeds is not asked."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_files, convert_source
from dp2ddp.rules import Options

_HEAD = "import torch\nimport torch.nn as nn\nfrom torch.utils.data import DataLoader\nfrom data import data\n"
_NET = "net = nn.DataParallel(nn.Linear(4, 2))\n"
_MADE = "DataLoader(data, 4)"

PLACES = {
    "a name": "loader = LOADER\nfor x in loader:\n    net(x)\n",
    "in a bar": "from tqdm import tqdm\nfor x in tqdm(LOADER, total=9):\n    net(x)\n",
    "of a part of the model": "class T:\n    def go(self):\n        for x in LOADER:\n            net.encoder(x)\n",
    "of a model that is looked up": "for x in LOADER:\n    eval('self.net')(x)\n    args.models['a'](x)\n",
    "of no model": "print(len(LOADER))\n",
    "in a function that nobody calls": "def load():\n    return LOADER\n",
    "under a key": "loaders = {'train': LOADER}\nloaders['test'] = LOADER\n",
    "in a field": "job.train, job.test = LOADER, None\nsetattr(job, 'train', LOADER)\njobs.append(LOADER)\n",
    "in arguments": "Trainer.epoch(net, loader=LOADER)\n",
    "in a default": "def run(loader=LOADER):\n    pass\n",
    "in a comprehension": "parts = [LOADER for _ in range(3)]\n",
    "in a data set": "class Few:\n    def __getitem__(self, i):\n        return next(iter(LOADER))\n",
    "in a branch": "if args.a:\n    loader = LOADER\nelse:\n    loader = None if args.b else LOADER\n",
    "by a getattr": "import torch.utils.data as d\nloader = LOADER\n",
}


def converted(script: str, **options: bool) -> str:
    return convert_source(_HEAD + _NET + script, "train.py", Options(**options)).new_text


@pytest.mark.parametrize(
    "made", [_MADE, "torch.utils.data.DataLoader(data)", "getattr(torch.utils.data, 'DataLoader')(data)"]
)
@pytest.mark.parametrize("place", PLACES)
def test_a_loader_is_sharded_wherever_it_is_made(place: str, made: str) -> None:
    script = PLACES[place]
    assert converted(script.replace("LOADER", made)).endswith(script.replace("LOADER", f"ddp.shard_loader({made})"))


def test_of_one_sample_there_is_nothing_to_share() -> None:
    for size, notes in (("1", 0), ("batch_size=1", 0), ("size", 1)):
        script = f"from torch import nn, utils\nnn.DataParallel(x)\nutils.data.DataLoader(x, {size}, collate_fn=pad)\n"
        assert len(convert_source(script, "train.py", Options()).notes) == notes, size


@pytest.mark.parametrize("given", ["collate_fn=pad", "collate_fn=None", "**{'collate_fn': pad}"])
def test_rows_are_said_where_a_collate_fn_may_mix_them(given: str) -> None:
    script = f"loader = DataLoader(data, 4, {given})\n"
    assert converted(script).endswith(f"loader = ddp.shard_loader(DataLoader(data, 4, {given}))\n")
    assert converted(script, rows=True).endswith(f"{given}){', rows=True' * ('pad' in given)})\n")


@pytest.mark.parametrize(
    "script",
    [
        "for idx in torch.randperm(8).view(-1, 4):\n    net(data[idx])\n",
        "import other\nfor x in other.make():\n    net(x)\n",
        "def run(loader: DataLoader) -> DataLoader:\n    assert type(loader) is DataLoader\n    return loader\n",
    ],
)
def test_nothing_else_is(script: str) -> None:
    assert converted(script).endswith(script)


_OWN = "class Own(DataLoader):\n    def __init__(self, data):\n        super().__init__(data, 4)\n        self.x = 1\n"
_MORE = "class More(Own):\n    def __init__(self, data):\n        super().__init__(data)\n"
_FILES = {"loaders.py": _HEAD + _OWN + _MORE}


@pytest.mark.parametrize(
    ("given", "call"),
    [
        ("from loaders import More as Own\n", "Own(data)"),
        ("from loaders import *\n", "More(data)"),
        ("import loaders as l\n", "l.More(data)"),
        ("def load(data):\n    from loaders import More\n    ", "More(data)"),
    ],
)
def test_a_loader_of_a_class_of_the_program_s_is_sharded_where_it_is_made(given: str, call: str) -> None:
    files = {"train.py": f"{_HEAD}{_NET}{given}loader = {call}\n", **_FILES}
    done = convert_files(files, ["train.py"], Options())
    assert done["train.py"].new_text.endswith(f"loader = ddp.shard_loader({call})\n")
    assert not done["loaders.py"].changed


@pytest.mark.parametrize(
    "made", ["getattr(loaders, config['name'])(data)", "loaders.__dict__[name](**config)", "eval(name)(data)"]
)
def test_a_loader_whose_class_is_picked_by_a_text_shards_itself(made: str) -> None:
    files = {"train.py": f"{_HEAD}{_NET}import loaders\nloader = {made}\nfor x in loader:\n    net(x)\n", **_FILES}
    done = convert_files(files, ["train.py"], Options())
    own = _OWN.replace("(data, 4)\n", "(data, 4)\n        ddp.shard_loader(self)\n")
    assert done["loaders.py"].new_text.endswith(own + _MORE)
    assert not done["train.py"].notes


HANDED_ON = {
    "partial": "from functools import partial\nmake = partial(DataLoader, batch_size=4)\nother = partial(DataLoader)\n",
    "a table": "kinds = {'plain': DataLoader}\nloader = kinds['plain'](data)\n",
    "another name": "Loader = DataLoader\nloader = Loader(data)\n",
    "a class that begins nothing": "class Own(DataLoader):\n    pass\nloader = globals()['Own'](data)\n",
}


@pytest.mark.parametrize("shape", HANDED_ON)
def test_a_class_that_is_handed_on_is_noted_once(shape: str) -> None:
    conversion = convert_source(_HEAD + _NET + HANDED_ON[shape], "train.py", Options())
    assert [(note.rule, "handed on" in note.what) for note in conversion.notes] == [("DDP005", True)]
    assert conversion.new_text.endswith(HANDED_ON[shape])


def test_a_program_without_a_loader_is_noted() -> None:
    trained = f"import torch.nn as nn\n{_NET}net(x).sum().backward()\n"
    conversion = convert_source(trained, "train.py", Options())
    assert ["no `DataLoader`" in note.what for note in conversion.notes] == [True]
    for other in (trained.replace(".backward()", ""), trained.replace("(4, 2))", "(4, 2), device_ids=[0])")):
        assert other != trained
        assert convert_source(other, "train.py", Options()).notes == []
