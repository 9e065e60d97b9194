"""What `ddp.setup()` is given is followed to where it comes from: parameters, attributes, conditions, variables."""

from __future__ import annotations

import textwrap

import pytest

from dp2ddp.convert.pipeline import Conversion, convert_files, convert_source
from dp2ddp.rules import Options

_HEAD = "import argparse\nimport os\nimport torch\nimport torch.nn as nn\n"
_ARGS = "args = argparse.ArgumentParser().parse_args()\n"


def converted(script: str) -> Conversion:
    return convert_source(_HEAD + textwrap.dedent(script), "train.py", Options())


_BUILD = "def build(gpus=None):\n    if gpus:\n        nn.DataParallel(nn.Linear(4, 2), device_ids=gpus)\n"
_READ = f"{_ARGS}import json\nwith open('c.json') as file:\n    config = json.load(file)\n"
_VISIBLE = "os.environ['CUDA_VISIBLE_DEVICES']"
# Scripts, and what setup is given.
GIVEN = {
    "a parameter of another name": (
        f"def build(opt):\n    return nn.DataParallel(nn.Linear(4, 2), opt.gpu_id)\n{_ARGS}net = build(args)\n",
        "device_ids=args.gpu_id",
    ),
    "a parameter's default": (
        "def build(n_gpus=1):\n    return nn.DataParallel(nn.Linear(4, 2), range(n_gpus))\nnet = build()\n",
        "device_ids=range(1)",
    ),
    "an attribute": (
        "class Trainer:\n    def __init__(self, opt):\n        self.n_gpus = opt.n_gpus\n        self.build()\n"
        "    def build(self):\n        self.net = nn.DataParallel(nn.Linear(4, 2), range(self.n_gpus))\n"
        f"{_ARGS}trainer = Trainer(args)\n",
        "device_ids=range(args.n_gpus)",
    ),
    "one of the values that a function returns": (
        "def prepare(n):\n    count = torch.cuda.device_count()\n    if n > count:\n        n = count\n"
        f"    ids = list(range(n))\n    return 'cuda', ids\n{_ARGS}net = nn.Linear(4, 2)\nto, ids = prepare(args.n)\n"
        "if len(ids) > 1:\n    net = nn.DataParallel(net, device_ids=ids)\n",
        "device_ids=list(range(min(args.n, ddp.device_count())))",
    ),
    "an option of an object that a class method makes": (
        "class Config:\n    def __init__(self, args):\n        self.args = args\n"
        "    @classmethod\n    def of(cls, args):\n        return cls(args)\n"
        "    def setup_log(self):\n        return self.args.log\ndef main(config):\n"
        "    config.setup_log()\n    net = nn.Linear(4, 2)\n    config.setup_log()\n"
        f"    net = nn.DataParallel(net, device_ids=config.gpus)\n{_ARGS}config = Config.of(args)\nmain(config)\n",
        "device_ids=config.gpus",
    ),
    "an attribute that two classes have": (
        "class Trainer:\n    def __init__(self, ids):\n        self.ids = ids\n"
        "        self.net = nn.DataParallel(nn.Linear(4, 2), device_ids=self.ids)\n"
        "class Other:\n    def __init__(self, ids):\n        self.ids = [ids]\n"
        f"ids = [0, 1]\n{_ARGS}other = Other(3)\ntrainer = Trainer(ids)\n",
        "device_ids=ids",
    ),
    "a range of another library's": (
        f"from six.moves import range\n{_ARGS}x = nn.parallel.data_parallel(net, x, range(args.gpus))\n",
        "device_ids=range(args.gpus)",
    ),
    "the one GPU of a list": (
        f"{_ARGS}net = nn.Linear(4, 2)\nif len(args.gpus) == 1:\n    net = net.cuda(device=args.gpus[0])\n"
        "else:\n    net = nn.DataParallel(net, device_ids=[0, 1]).cuda()\n",
        "device_ids=[0, 1] if len(args.gpus) != 1 else [args.gpus[0]]",
    ),
    "an attribute of a base": (
        "class Base:\n    def __init__(self, opt):\n        self.gpu_ids = opt.gpu_ids\n"
        "class Model(Base):\n    def __init__(self, opt):\n        Base.__init__(self, opt)\n"
        "        self.net = nn.DataParallel(nn.Linear(4, 2), self.gpu_ids)\n"
        f"{_ARGS}args.gpu_ids = [0, 1]\nprint(args)\nmodel = Model(args)\n",
        "device_ids=args.gpu_ids",
    ),
    "a class that is kept in the arguments": (
        "class Both(nn.Module):\n    def __init__(self, args):\n        super().__init__()\n"
        f"        self.loss = args.kind(args)\n{_ARGS}args.kind = getattr(nn, args.loss)\nnet = Both(args)\n"
        "net = nn.DataParallel(net, device_ids=list(range(args.gpus)))\n",
        "device_ids=list(range(args.gpus))",
    ),
    "arguments to which a function adds": (
        f"def fill(options):\n    options.lr = 1\n{_ARGS}net = nn.Linear(4, 2)\nfill(args)\n"
        "net = nn.DataParallel(net, device_ids=args.gpus)\n",
        "device_ids=args.gpus",
    ),
    "their own name": (
        "from config import *\ngpus = gpus\nnet = nn.DataParallel(nn.Linear(4, 2), gpus)\n",
        "device_ids=gpus",
    ),
    "a default that a call changes": (f"{_BUILD}print(1)\nbuild([0, 1])\n", "device_ids=[0, 1]"),
    "the function's": (
        f"{_ARGS}x = torch.rand(4, 4)\nprint(nn.parallel.data_parallel(nn.Linear(4, 2), x, device_ids=args.gpus))\n",
        "device_ids=args.gpus",
    ),
    "the condition that leaves one, as it is": (
        f"{_ARGS}net = nn.Linear(4, 2)\nif not args.plain:\n    net = nn.DataParallel(net)\n",
        "device_ids=[0] if args.plain else None",
    ),
    "a condition in the dictionary of the arguments": (
        f"{_ARGS}def build(held):\n    return nn.DataParallel(net) if held['multi'] else net\n"
        "net = nn.Linear(4, 2)\nbuild(args.__dict__)\n",
        "device_ids=None if args.multi else [0]",
    ),
    "a condition that raises": (
        f"{_ARGS}if args.data == 'a': n = 2\nelse: raise ValueError(args.data)\n"
        "net = nn.DataParallel(nn.Linear(4, 2), device_ids=args.gpus)\n",
        "device_ids=args.gpus",
    ),
    "a number that may say that no GPU is given": (
        f"{_ARGS}net = nn.Linear(4, 2)\nif args.gpu < 0:\n    net = nn.DataParallel(net)\n"
        "else:\n    torch.cuda.set_device(args.gpu)\n",
        "device_ids=None if args.gpu < 0 else [args.gpu]",
    ),
    "those that are made visible": (
        f"{_ARGS}net = nn.Linear(4, 2)\n{_VISIBLE} = str(args.gpu)\nnet = nn.DataParallel(net)\n",
        "device_ids=str(args.gpu)",
    ),
    "those that are made visible where one is asked for": (
        f"{_ARGS}net = nn.Linear(4, 2)\nif args.gpu: {_VISIBLE} = args.gpu\nnet = nn.DataParallel(net)\n",
        "device_ids=args.gpu or None",
    ),
    "those that are made visible where there are GPUs": (
        f"net = nn.Linear(4, 2)\nif torch.cuda.is_available(): {_VISIBLE} = '0,1'\nnet = nn.DataParallel(net)\n",
        "device_ids='0,1'",
    ),
    "the ones or the others that are made visible": (
        f"{_ARGS}net = nn.Linear(4, 2)\nif args.a: {_VISIBLE} = '0'\nelse: {_VISIBLE} = args.b\n"
        "net = nn.DataParallel(net)\n",
        "device_ids=args.b if not args.a else '0'",
    ),
    "a question that only looks at a value": (
        f"{_READ}net = nn.Linear(4, 2)\nif bool(args.several) and config['several']:\n    net = nn.DataParallel(net)\n",
        "device_ids=None if bool(args.several) and config['several'] else [0]",
    ),
    "all of them, one by one": (
        "net = nn.Linear(4, 2)\nids = [i for i in range(torch.cuda.device_count())]\n"
        "if len(ids) > 1:\n    net = nn.DataParallel(net, ids)\n",
        "",
    ),
    "all of them, as a list": (
        "net = nn.Linear(4, 2)\nids = list(range(torch.cuda.device_count()))\n"
        "if len(ids) > 1:\n    net = nn.DataParallel(net, ids)\n",
        "",
    ),
    "a keyword's default": (
        "net = nn.Linear(4, 2)\ndef train(net, *, ids=None):\n    nn.DataParallel(net, device_ids=ids)\ntrain(net)\n",
        "",
    ),
}


@pytest.mark.parametrize("asked", ["gpus:", "gpus and gpus > 1:"])
def test_a_script_that_never_asks_for_several_devices_stays_as_it_is(asked: str) -> None:
    script = f"{_BUILD.replace('gpus:', asked)}print(1)\nbuild()\n"
    result = converted(script)
    assert (result.changed, result.on_one_device, result.notes) == (False, True, [])


@pytest.mark.parametrize("way", GIVEN)
def test_devices_are_followed_to_where_they_come_from(way: str) -> None:
    script, given = GIVEN[way]
    result = converted(script)
    assert f"ddp.setup({given})\n" in result.new_text
    assert not result.notes


@pytest.mark.parametrize(
    "first",
    [
        "device = 'cuda' if torch.cuda.is_available() else 'mps' if torch.mps.is_available() else 'cpu'",
        "on = torch.xpu.is_available() or torch.backends.mps.is_built()",
        "if platform.system() == 'Windows':\n    import msvcrt\nelse:\n    import fcntl",
    ],
)
def test_what_only_looks_around_is_no_effect(first: str) -> None:
    train = (
        f"import platform\n{_HEAD}{first}\ndef main(args):\n"
        "    net = nn.DataParallel(nn.Linear(4, 2), device_ids=args.gpus)\n"
        f"if __name__ == '__main__':\n    {_ARGS}    main(args)\n"
    )
    other = "from torch.utils.data import DataLoader\nif __name__ == '__main2__':\n    loader = DataLoader([])\n"
    result = convert_files({"train.py": train, "other.py": other}, ["train.py"], Options())["train.py"]
    assert "    ddp.setup(device_ids=args.gpus)\n    net = " in result.new_text
    assert not result.notes
