"""Which loaders are sharded, and that none is twice."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_files, convert_source
from dp2ddp.rules import Options

_HEAD = "import torch\nimport torch.nn as nn\nfrom torch.utils.data import DataLoader\nfrom data import data\n"
_NET = "net = nn.DataParallel(nn.Linear(4, 2))\n"
_STEP = "    net(x).sum().backward()\n"


def lines(script: str) -> list[str]:
    """The lines of a conversion that shard something."""
    new = convert_source(_HEAD + _NET + script, "train.py", Options()).new_text
    return [line.strip() for line in new.splitlines() if "shard_loader" in line]


@pytest.mark.parametrize(
    "table", ["{}", "dict()", "collections.OrderedDict()", "collections.defaultdict(list)", "made_elsewhere()"]
)
def test_a_loader_kept_under_a_key_is_sharded_where_it_is_made(table: str) -> None:
    script = (
        f"import collections\nfrom tqdm import tqdm\nfrom other import made_elsewhere\nloaders = {table}\n"
        "loaders['train'] = DataLoader(data, 4)\nbar = tqdm(loaders['train'])\nfor i, x in enumerate(bar):\n" + _STEP
    )
    assert lines(script) == ["loaders['train'] = ddp.shard_loader(DataLoader(data, 4))"]


@pytest.mark.parametrize("given", ["train=DataLoader(data, 4)", "DataLoader(data, 4)"])
@pytest.mark.parametrize(
    "make",
    [
        "class Data(typing.NamedTuple):\n    train: DataLoader\n",
        "@dataclasses.dataclass\nclass Data:\n    train: DataLoader\n",
        "Data = collections.namedtuple('Data', 'train')\n",
    ],
)
def test_a_loader_in_a_field_is_sharded_once(make: str, given: str) -> None:
    imports = f"import collections\nimport dataclasses\nimport typing\n{make}"
    made = f"Data({given.replace('DataLoader(data, 4)', 'ddp.shard_loader(DataLoader(data, 4))')})"
    assert lines(f"{imports}d = Data({given})\nfor x in d.train:\n{_STEP}") == [f"d = {made}"]
    run = f"def run(d):\n    over = d.train\n    for x in over:\n    {_STEP}run(get())\n"
    assert lines(f"{imports}def get():\n    return Data({given})\n\n{run}") == [f"return {made}"]


@pytest.mark.parametrize(
    "bar", ["tqdm.autonotebook.tqdm", "tqdm.notebook.tqdm_notebook", "alive_progress.alive_it", "bars.show"]
)
def test_a_bar_over_a_loader_is_not_sharded(bar: str) -> None:
    script = (
        f"import {bar.rpartition('.')[0]}\nloader = DataLoader(data, 4)\nbar = {bar}(loader)\nfor x in bar:\n{_STEP}"
    )
    assert lines(script) == ["loader = ddp.shard_loader(DataLoader(data, 4))"]


def test_a_loader_that_is_made_elsewhere_is_sharded_inside_of_its_bar() -> None:
    made = "from tqdm import tqdm\nfrom other import make\nloader = make()\n"
    script = f"{made}bar = tqdm(loader, total=9)\nfor x in bar:\n{_STEP}"
    assert lines(script) == ["bar = tqdm(ddp.shard_loader(loader), total=9)"]


def test_what_goes_over_a_loader_in_an_object_of_the_script_s_is_not_sharded() -> None:
    timed = "class Timed:\n    def __init__(self, over):\n        self.over = iter(over)\n    def __iter__(self):\n" + (
        "        return self\n    def __next__(self):\n        return next(self.over)\n"
    )
    script = (
        f"from tqdm import tqdm\n{timed}loader = DataLoader(data, 4)\nbar = tqdm(Timed(loader))\nfor x in bar:\n{_STEP}"
    )
    assert lines(script) == ["loader = ddp.shard_loader(DataLoader(data, 4))"]


def test_a_list_that_came_out_of_a_loader_is_not_sharded() -> None:
    inner = "    for i, x in enumerate(parts):\n    " + _STEP
    script = "loader = DataLoader(data, 4, collate_fn=list)\nfor batch in loader:\n    parts = batch[0]\n" + inner
    assert lines(script) == ["loader = ddp.shard_loader(DataLoader(data, 4, collate_fn=list))"]
    # A list of loaders that are made elsewhere isn't one.
    script = f"from other import loaders\nfor parts in loaders:\n{inner}"
    assert lines(script) == ["for i, x in enumerate(ddp.shard_loader(parts)):"]


def test_loaders_of_one_name_in_functions_that_either_module_may_hold() -> None:
    """Each class's own; and whichever of two modules is imported."""
    trained = (
        _HEAD.replace("from data import data\n", "data = list(range(8))\n")
        + "class First:\n    def __init__(self):\n        self.loader = DataLoader(data, 4)\n"
        "class Second:\n    def __init__(self):\n        self.loader = DataLoader(data, 2)\n"
        "def train():\n    net = nn.DataParallel(nn.Linear(4, 2))\n"
        "    for x in First().loader:\n        net(x).sum().backward()\n"
        "    for x in Second().loader:\n        net(x).sum().backward()\n"
    )
    main = "import sys\nif sys.argv[1:]:\n    from x import train\nelse:\n    from y import train\ntrain()\n"
    done = convert_files({"main.py": main, "x.py": trained, "y.py": trained}, ["main.py"], Options())
    for name in ("x.py", "y.py"):
        assert done[name].new_text.count("ddp.shard_loader(DataLoader(") == 2
        assert "ddp.wrap_model(" in done[name].new_text


def test_a_function_that_branches_import_is_each_of_them() -> None:
    files = {
        "main.py": _HEAD + "def load(kind):\n    if kind:\n        from a import build\n    elif args.b:\n"
        "        from b import build\n    else:\n        from c import build\n    return build()\n"
        + _NET + "for x, y in load(args.kind):\n    net(x)\n",
        **{f"{name}.py": f"{_HEAD}def build():\n    return DataLoader(data, 4)\n" for name in "abc"},
    }  # fmt: skip
    done = convert_files(files, ["main.py"], Options())
    assert all("return ddp.shard_loader(DataLoader(data, 4))\n" in done[f"{name}.py"].new_text for name in "abc")


def test_functions_of_a_class_may_take_no_self() -> None:
    script = (
        "import torch.nn as nn\nfrom torch.utils.data import DataLoader\nclass Trainer:\n    def train(data):\n"
        "        net = nn.DataParallel(nn.Linear(4, 2))\n        Trainer.epoch(net, DataLoader(data, 4))\n"
        "    def epoch(model, loader):\n        for x in loader:\n            model(x)\nTrainer.train(data)\n"
    )
    new = convert_source(script, "train.py", Options()).new_text
    assert "Trainer.epoch(net, ddp.shard_loader(DataLoader(data, 4)))\n" in new


def test_a_loader_in_a_data_set_out_of_which_samples_come_is_each_workers_own() -> None:
    data_set = (
        "class Few:\n    def __init__(self, sets):\n        self.parts = [DataLoader(each, 4) for each in sets]\n"
        "    def __len__(self):\n        return 3\n"
        "    def __getitem__(self, i):\n        return next(iter(self.parts[i]))\n"
    )
    new = convert_source(
        _HEAD + data_set + _NET + "for x, y in DataLoader(Few(sets)):\n    net(x)\n", "t.py", Options()
    ).new_text
    assert data_set in new
    assert "for x, y in ddp.shard_loader(DataLoader(Few(sets))):\n" in new


def test_a_loader_that_is_handed_to_nobody_known_is_sharded_where_it_is_made_alone() -> None:
    files = {
        "main.py": _HEAD + "import importlib\n" + _NET + "train = importlib.import_module(f'ways.{args.way}').train\n"
        "train(DataLoader(data, 4), net)\n",
        "ways/plain.py": "import torch.nn as nn\nreg = nn.L1Loss()\n"
        "class Net(nn.Module):\n    pass\nother = Net()\n"
        "def train(loader, net):\n    for x, y in loader:\n        (net(x).sum() + other(x)).backward()\n",
    }  # fmt: skip
    done = convert_files(files, ["main.py"], Options())
    assert "train(ddp.shard_loader(DataLoader(data, 4)), net)\n" in done["main.py"].new_text
    assert done["ways/plain.py"].new_text == files["ways/plain.py"]


def test_the_loader_of_a_functional_form_in_a_method_is_sharded() -> None:
    """What kind of model a method is given isn't known there."""
    step = "class Trainer:\n    def step(self, x):\n        return nn.parallel.data_parallel(self.net, x, [0, 1])\n"
    loop = "trainer = Trainer()\nfor x in DataLoader(data, 4):\n    trainer.step(x)\n"
    assert lines(step + loop) == ["for x in ddp.shard_loader(DataLoader(data, 4)):"]


@pytest.mark.parametrize("made", ["torch.randperm(8).view(-1, 4)", "numpy.arange(8).reshape(2, 4)"])
def test_what_goes_over_a_tensor_is_not_sharded(made: str) -> None:
    step = "for idx in perm:\n    nn.Linear(4, 2)(data[idx]).sum().backward()\n"
    assert lines(f"import numpy\nperm = {made}\n{step}") == []


@pytest.mark.parametrize(
    "store",
    [
        "job.train = DataLoader(data, 4)",
        "job.train, job.test = DataLoader(data, 4), None",
        "setattr(job, 'train', DataLoader(data, 4))",
        "job.parts.train.append(DataLoader(data, 4))",
    ],
)
def test_a_loader_that_is_stored_out_of_sight_is_sharded_where_it_is_made(store: str) -> None:
    loop = "for _ in range(3):\n    x = next(job.batches())\n" + _STEP
    assert lines(f"from easydict import EasyDict\njob = EasyDict()\n{store}\n{loop}") == [
        store.replace("DataLoader(data, 4)", "ddp.shard_loader(DataLoader(data, 4))")
    ]


@pytest.mark.parametrize("loop", ["for x in job.train:\n", "batches = job.train.__iter__()\nfor x in batches:\n"])
def test_a_loader_that_is_stored_out_of_sight_is_sharded_where_it_is_made_alone(loop: str) -> None:
    build = "def build(job):\n    job.train = DataLoader(data, 4)\n"
    assert lines(f"import jobs\n{build}job = jobs.Job(build)\n{loop}{_STEP}") == [
        "job.train = ddp.shard_loader(DataLoader(data, 4))"
    ]


@pytest.mark.parametrize("loader", ["DataLoader(data, 4)", "loader"])
def test_a_model_that_is_stored_out_of_sight_is_fed(loader: str) -> None:
    loop = f"for x in {loader}:\n    args.net(x).sum().backward()\n"
    assert lines(f"import zoo\nargs, loader = zoo.parse(), zoo.make()\nargs.net = net\n{loop}") == [
        f"for x in ddp.shard_loader({loader}):"
    ]
