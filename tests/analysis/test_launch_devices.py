"""Which devices `ddp.setup()` is given: those of the wraps, where they are known there."""

from __future__ import annotations

import textwrap

import pytest

from dp2ddp.convert.pipeline import Conversion, convert_files, convert_source
from dp2ddp.rules import Options

_HEAD = "import argparse\nimport os\nimport torch\nimport torch.nn as nn\n"
_ARGS = "args = argparse.ArgumentParser().parse_args()\n"


def converted(script: str) -> Conversion:
    return convert_source(_HEAD + textwrap.dedent(script), "train.py", Options())


# Each fills what the wrap's `device_ids` are read from, and is followed by the wrap's own line.
FILLED = {
    "by a method": ("from config import cfg\n", "cfg.merge_from_file(args.cfg)", "cfg.GPUS"),
    "by a function of a file that isn't there": (
        "from config import cfg, update_config\n",
        "update_config(cfg, args)",
        "list(cfg.GPUS)",
    ),
    "by its dictionary": ("import yaml\n", "args.__dict__.update(yaml.safe_load(args.file))", "args.gpus"),
    "by a function that is given its variables": (
        "def fill(options, given):\n    for key in given: options[key] = given[key]\n",
        "fill(vars(args), read('a'))",
        "args.gpus",
    ),
    "by its variables": ("import yaml\n", "vars(args).update(yaml.safe_load(args.file))", "args.gpus"),
    "by setattr": ("", "for name in args.names: setattr(args, name, read(name))", "args.gpus"),
    "one after the other": ("ids = []\n", "for i in args.gpus: ids.append(int(i))", "ids"),
}


@pytest.mark.parametrize("way", FILLED)
def test_the_processes_start_where_the_devices_are_known(way: str) -> None:
    imports, fills, ids = FILLED[way]
    result = converted(
        f"{imports}{_ARGS}print(args)\n{fills}\nnet = nn.DataParallel(nn.Linear(4, 2), device_ids={ids})\n"
    )
    lines = result.new_text.splitlines()
    assert lines.index(f"ddp.setup(device_ids={ids})") > lines.index(fills)
    assert lines[-1] == f"net = ddp.wrap_model(nn.Linear(4, 2), device_ids={ids})"
    assert not result.notes


@pytest.mark.parametrize("way", FILLED)
def test_devices_that_are_filled_in_too_late_are_not_given(way: str) -> None:
    imports, fills, ids = FILLED[way]
    script = f"{imports}{_ARGS}net = nn.Linear(4, 2)\n{fills}\nnet = nn.DataParallel(net, device_ids={ids})\n"
    result = converted(script)
    assert "ddp.setup()\nnet = nn.Linear(4, 2)\n" in result.new_text
    assert result.new_text.endswith(f"net = ddp.wrap_model(net, device_ids={ids})\n")
    assert not result.notes  # the wrap says how many processes go on


@pytest.mark.parametrize(
    "between",
    [
        "state = {k: v for k, v in args._get_kwargs()}; open(args.log, 'w').write(json.dumps(state))",
        "print(args)",
        "logger.info(args)",
        "setattr(args, 'lr', 0.1)",
        "report(args)",
        "cfg.defrost()\ncfg.MODEL.INIT = False\ncfg.freeze()",
    ],
)
def test_what_only_reads_leaves_the_devices_known(between: str) -> None:
    script = (
        "import json\nfrom data import Data\nfrom log import log, logger\nfrom config import cfg\n"
        f"def report(options):\n    print(options.lr)\n{_ARGS}net = nn.Linear(4, 2)\n{between}\n"
    )
    for ids in ("args.gpus", "cfg.GPUS"):
        result = converted(f"{script}net = nn.DataParallel(net, device_ids={ids})\n")
        assert f"ddp.setup(device_ids={ids})\nnet = nn.Linear" in result.new_text


_PREPARE = "def prepare(n):\n    {}\n    return 'cuda', list(range(n))\n"
_PREPARED = f"{_ARGS}net = nn.Linear(4, 2)\nto, ids = prepare(args.n)\nnet = nn.DataParallel(net, device_ids=ids)\n"
_TRAINER = """\
class Trainer:
    def __init__(self, opt):
        self.ids = opt.ids
    def build(self):
        self.net = nn.DataParallel(nn.Linear(4, 2), self.ids)
"""
_FILL = f"def fill(options):\n    {{}}\n{_ARGS}net = nn.Linear(4, 2)\nfill(args)\n"
NOT_FOLLOWED = {
    "a parameter that is set to its double": _PREPARE.format("n = 2 * n") + _PREPARED,
    "a parameter that is added to": _PREPARE.format("n += 1") + _PREPARED,
    "a parameter that is bounded": _PREPARE.format("n = max(n, 1)") + _PREPARED,
    "a parameter that is set where it is none": (
        _PREPARE.format("if n == 0: n = torch.cuda.device_count()") + _PREPARED
    ),
    "an attribute that another class sets": (
        f"{_TRAINER}class Slim(Trainer):\n    def reset(self):\n        self.ids = [0]\n{_ARGS}Slim(args).reset()\n"
        "Trainer(args).build()\n"
    ),
    "an attribute that a function sets": (
        f"{_TRAINER}def narrow(trainer):\n    trainer.ids = [0]\n{_ARGS}trainer = Trainer(args)\n"
        "narrow(trainer)\ntrainer.build()\n"
    ),
    "arguments that a function fills": (
        _FILL.format("options.gpus = [0]") + "net = nn.DataParallel(net, device_ids=args.gpus)\n"
    ),
    "arguments that a function updates": (
        _FILL.format("options.__dict__.update(x=1)") + "net = nn.DataParallel(net, device_ids=args.gpus)\n"
    ),
    "arguments that a method gets, which may do anything": (
        f"class Both(nn.Module):\n    def __init__(self, args):\n        self.loss = args.kind(args)\n{_ARGS}"
        "net = Both(args)\nnet = nn.DataParallel(net, device_ids=list(range(args.gpus)))\n"
    ),
}


@pytest.mark.parametrize("way", NOT_FOLLOWED)
def test_what_may_be_set_to_anything_else_is_not_followed(way: str) -> None:
    result = converted(NOT_FOLLOWED[way])
    assert "ddp.setup()\n" in result.new_text
    assert not result.notes


_DEFINED = """\
parser = argparse.ArgumentParser()
parser.add_argument("--multi", action="store_true")
parser.add_argument("--no-cuda", action="store_true")
args = parser.parse_args()
args.cuda = not args.no_cuda and torch.cuda.is_available()
has_gpus = torch.cuda.is_available()
device = torch.device("cuda" if has_gpus else "cpu")
count = torch.cuda.device_count()
net = nn.Linear(4, 2)
"""
ALL = "net = nn.DataParallel(net)"
TWO = "net = nn.DataParallel(net, device_ids=[0, 1])"
CONDITIONS = {
    # where all devices are used and there are several, this is true
    f"if torch.cuda.device_count() > 1: {ALL}": "",
    f"args.n = torch.cuda.device_count()\nif args.n > 1: {ALL}": "",
    "class Both:\n  def __init__(self):\n    self.n = len(range(torch.cuda.device_count()))\n"
    "    if self.n > 1: self.net = nn.DataParallel(net)\nclass Other:\n  n = None\n"
    "  def __init__(self): self.n = 1\nBoth()": "",
    # nothing is wrapped without the option, or on one device
    f"if args.multi: {ALL}": "device_ids=None if args.multi else [0]",
    f"if not args.multi: print('one')\nelif has_gpus: {ALL}": "device_ids=None if args.multi else [0]",
    f"if args.multi or args.cuda:\n  if args.cuda: {ALL}": (
        "device_ids=None if (args.multi or args.cuda) and args.cuda else [0]"
    ),
    f"if torch.cuda.device_count() > 1: {TWO}": "device_ids=[0, 1] if ddp.device_count() > 1 else [0]",
    # several wraps
    f"if count == 2: {TWO}\nelif count == 4: {ALL}": "device_ids=None if ddp.device_count() in (2, 4) else [0]",
    f"if args.multi: {TWO}\nelse: {ALL}": "",
    f"if count == 3: {TWO.replace('1]', '1, 2]')}\nelif count == 2: {TWO}": (
        "device_ids=None if ddp.device_count() in (3, 2) else [0]"
    ),
    f"if args.multi and args.cuda: {TWO}\nelif args.multi: {TWO}": "device_ids=[0, 1] if args.multi else [0]",
    f"if args.multi:\n  if args.cuda: {ALL}\n  else: other = nn.DataParallel(net)": (
        "device_ids=None if args.multi else [0]"
    ),
    f"if args.multi: {TWO}\nelse: other = nn.DataParallel(net, device_ids=[0, 1])": "device_ids=[0, 1]",
    "if args.multi and len(args.gpus): net = nn.DataParallel(net, device_ids=args.gpus)": (
        "device_ids=args.gpus if args.multi else [0]"
    ),
    "if len(args.gpus) > 0: net = nn.DataParallel(net, device_ids=args.gpus)": "device_ids=args.gpus",
    # where anything else ends the script
    f"if args.multi: {ALL}\nelse: raise ValueError('no')": "",
    f"if not args.multi:\n  print('no')\n  sys.exit(1)\nelse: {TWO}": "device_ids=[0, 1]",
    f"if args.multi: {TWO}\nelif args.cuda: {TWO}\nelse: assert False, 'no'": "device_ids=[0, 1]",
    f"if torch.cuda.device_count() == 2: {TWO}\nelse: raise ValueError('not two')": (
        "device_ids=[0, 1] if ddp.device_count() == 2 else [0]"
    ),
    f"if args.a: {ALL}\nelse: {ALL}\nif args.b: {ALL}": "",  # one of the first two in any case
    # what isn't known where the processes start, or may be something else further down
    f"if net.weight.numel() > 3: {ALL}": "",
    f"args.multi = find()\nif args.multi: {ALL}": "",
}


@pytest.mark.parametrize("wraps", CONDITIONS)
def test_the_devices_are_those_of_the_wraps_that_are_reached(wraps: str) -> None:
    result = converted(_DEFINED + textwrap.indent(wraps, "") + "\n")
    assert f"\nddp.setup({CONDITIONS[wraps]})\n" in result.new_text
    assert not result.notes


def test_where_nothing_is_wrapped_the_gpu_is_the_one_that_is_picked_then() -> None:
    script = "if args.kind == 'large':\n    net = nn.DataParallel(net)\nelse:\n    torch.cuda.set_device(args.gpu)\n"
    result = converted(f"{_ARGS}net = nn.Linear(4, 2)\n{script}")
    assert "ddp.setup(device_ids=None if args.kind == 'large' else [args.gpu])\n" in result.new_text
    assert "torch.cuda.set_device(ddp.device())\n" in result.new_text
    result = converted(
        f"{_ARGS}net = nn.Linear(4, 2)\n{script.replace('else:', 'else:' + chr(10) + '    args.gpu = 1')}"
    )
    assert "ddp.setup(device_ids=None if args.kind == 'large' else [0])\n" in result.new_text
    assert result.new_text.endswith("torch.cuda.set_device(args.gpu)\n")  # of the one process that there is then


#: What chooses a GPU where nothing is wrapped.
PICKS = {
    "net.cuda(args.gpu)": "args.gpu",
    "torch.cuda.set_device(int(args.gpu))": "args.gpu",
    "device = torch.device(f'cuda:{args.gpu}' if torch.cuda.is_available() else 'cpu')": "args.gpu",
    "device = 'cuda:%d' % args.gpu": "args.gpu",
    "device = torch.device('cuda', args.gpu)": "args.gpu",
    "device = torch.device('cuda:1' if torch.cuda.is_available() else 'cpu')": "1",
    "print('cuda:1')": "0",
    "class Net:\n    def cuda(self, x): pass\nNet().cuda(args.data)": "0",
    "if args.apart:\n    torch.cuda.set_device(args.gpu)": "0",
}


@pytest.mark.parametrize(
    ("script", "given"),
    [
        (
            "if args.cuda:\n    if args.gpu != -1:\n        torch.cuda.set_device(args.gpu)\n        net.cuda()\n"
            "    else:\n        net = nn.DataParallel(net, device_ids=[0, 1]).cuda()\n",
            "[0, 1] if args.cuda and args.gpu == -1 else [args.gpu]",
        ),
        (
            "torch.cuda.set_device(args.gpu)\nif args.parallel:\n    net = nn.DataParallel(net).cuda()\n",
            "None if args.parallel else [args.gpu]",
        ),
        (
            "if args.gpus > 0:\n    net.cuda(args.gpu)\nif args.parallel:\n    net = nn.DataParallel(net)\n",
            "None if args.parallel else [0]",
        ),
        *(
            (f"{pick}\nif args.parallel:\n    net = nn.DataParallel(net)\n", f"None if args.parallel else [{gpu}]")
            for pick, gpu in PICKS.items()
        ),
        (
            "if pick(net):\n    torch.cuda.set_device(args.gpu)\nif args.parallel:\n    net = nn.DataParallel(net)\n",
            "None if args.parallel else [0]",
        ),
        (
            "args.cuda = not args.no_cuda and torch.cuda.is_available()\nif args.cuda:\n"
            "    torch.cuda.set_device(args.gpu)\nif args.parallel:\n    net = nn.DataParallel(net)\n",
            "None if args.parallel else [args.gpu]",
        ),
    ],
)
def test_the_gpu_that_is_picked_is_given_where_nothing_is_wrapped(script: str, given: str) -> None:
    assert f"ddp.setup(device_ids={given})\n" in converted(f"{_ARGS}net = nn.Linear(4, 2)\n{script}").new_text


ONE_DEVICE = ["device_ids=[0]", "[1]", "device_ids=(0,)", "device_ids=0", "device_ids=['cuda:1']"]


@pytest.mark.parametrize("given", ONE_DEVICE)
def test_scripts_with_one_device_stay_one_process(given: str) -> None:
    script = f"net = nn.DataParallel(nn.Linear(4, 2), {given})\nprint(isinstance(net, nn.DataParallel))\n"
    result = converted(script)
    assert result.new_text == _HEAD + script
    assert result.on_one_device
    assert not result.notes


def test_wraps_for_different_devices_start_as_many_as_the_widest_asks_for() -> None:
    wraps = (
        "net = nn.Linear(4, 2)\none = nn.DataParallel(net, device_ids={})\ntwo = nn.DataParallel(net, device_ids={})\n"
    )
    for one, other, given in (
        ("[0, 1]", "[0]", "device_ids=[0, 1]"),
        ("[0]", "range(3)", "device_ids=range(3)"),
        ("[0, 1]", "[2, 3]", ""),
        ("[0, 1]", "None", ""),
        ("[0, 1]", "pick(net)", ""),
    ):
        result = converted(wraps.format(one, other))
        assert f"ddp.setup({given})\nnet = " in result.new_text
        assert not result.notes


@pytest.mark.parametrize(
    "sets",
    [
        "if net.ok(): os.environ['{}'] = args.gpu",
        "os.environ['{}'] = pick(net)",
        "if args.x: os.environ['{}'] = pick()",
    ],
)
def test_gpus_that_are_not_known_at_the_start_are_noted(sets: str) -> None:
    sets = sets.format("CUDA_VISIBLE_DEVICES")
    result = converted(f"{_ARGS}net = nn.Linear(4, 2)\n{sets}\nnet = nn.DataParallel(net)\n")
    assert "ddp.setup()" in result.new_text
    assert "CUDA_VISIBLE_DEVICES is set after the processes have started" in result.notes[0].what


def test_what_fire_calls_may_set_the_devices() -> None:
    script = (
        "import fire\nclass Settings:\n    def parse(self):\n        self.to, self.ids = choose()\nopt = Settings()\n"
        "def build():\n    return nn.DataParallel(nn.Linear(4, 2), device_ids=opt.ids)\n"
        "def train():\n    opt.parse()\n    build()\nfire.Fire(train)\n"
    )
    result = converted(script)
    assert "    ddp.setup()\n" in result.new_text
    assert not result.notes


# What a function does besides giving the devices; where it may be called once more.
DOING = {
    "return [int(i) for i in args.gpus.split(',')]": True,
    "return read(open('gpus.txt').read()) if args.gpus is None else args.gpus": False,
    "print(args)\n    return args.gpus": False,
}


@pytest.mark.parametrize("body", DOING)
def test_a_function_that_does_more_than_reading_is_not_called_once_more(body: str) -> None:
    for wrap in ("nn.DataParallel(net, device_ids=gpus())", "ids = gpus()\nnet = nn.DataParallel(net, device_ids=ids)"):
        result = converted(f"{_ARGS}def gpus():\n    {body}\nnet = nn.Linear(4, 2)\n{wrap}\n")
        assert ("ddp.setup(device_ids=gpus())\n" in result.new_text) == DOING[body]
        assert ("ddp.setup()\n" in result.new_text) != DOING[body]


@pytest.mark.parametrize(
    "chain",
    [
        "if args.distributed:\n    D\nelif args.gpu is not None:\n    G\nelse:\n    W\n",
        "if not torch.cuda.is_available() and not torch.backends.mps.is_available():\n    pass\n"
        "elif args.distributed:\n    D\nelif args.gpu is not None and torch.cuda.is_available():\n    G\n"
        "elif torch.backends.mps.is_available():\n    pass\nelse:\n    W\n",
    ],
)
def test_beside_a_script_s_own_ddp_the_gpu_that_is_picked_is_given_too(chain: str) -> None:
    script = (
        (
            f"{_HEAD}import torch.distributed as dist\n{_ARGS}args.distributed = args.world_size > 1\n"
            "if args.gpu is not None:\n    print(args.gpu)\nif args.distributed:\n    dist.init_process_group('nccl')\n"
            "net = nn.Linear(4, 2)\n" + chain.replace("D", "torch.cuda.set_device(args.gpu)")
        )
        .replace("    G\n", "    torch.cuda.set_device(args.gpu)\n")
        .replace("    W\n", "    net = nn.DataParallel(net)\n")
    )
    new = convert_source(script, "train.py", Options(allow_ddp=True)).new_text
    assert "ddp.setup(device_ids=None if args.gpu is None else [args.gpu], beside_ddp=True)\n" in new


_TAKEN_OFF = """\
import torch
import torch.nn as nn
class Net(nn.Module):
    def __init__(self, file=None, gpus=1):
        super().__init__()
        net = nn.Linear(4, 2)
        if gpus >= 1:
            net = nn.DataParallel(net)
        LINE
        net = net.eval()
        self.net = net.module
        del net
"""


@pytest.mark.parametrize("line", ["net.load_state_dict(torch.load(file))", "y = net(0)", "keep(net)", "y = net.cuda()"])
def test_a_wrap_that_is_taken_off_again_is_no_reason_for_processes(line: str) -> None:
    files = {
        "nets.py": _TAKEN_OFF.replace("LINE", line),
        "show.py": "from nets import Net\nprint(Net())\n",
        "train.py": f"{_HEAD}from nets import Net\n{_ARGS}net = Net()\nif args.cuda:\n    net = nn.DataParallel(net)\n",
    }
    only = line.startswith("net.load")
    alone = convert_files({name: files[name] for name in ("show.py", "nets.py")}, ["show.py"], Options())
    assert ("ddp.setup" in alone["show.py"].new_text) is not only
    both = convert_files(files, ["train.py"], Options())["train.py"].new_text
    assert ("ddp.setup(device_ids=None if args.cuda else [0])" if only else "ddp.setup()") in both


def test_a_wrap_on_a_condition_of_which_only_the_inside_is_called_stays_one_process() -> None:
    script = (
        "net = nn.Linear(4, 2)\nif args.cuda:\n    net = nn.DataParallel(net).cuda()\nprint(net)\nnet.module(args.x)\n"
    )
    assert converted(_ARGS + script).on_one_device


def test_the_gpu_that_the_script_s_own_ddp_picks_is_not_what_the_rest_uses() -> None:
    """As fine-tuning scripts have it: `local_rank` is -1 where there is no DDP."""
    script = (
        "if args.local_rank == -1 or args.no_cuda:\n    args.n_gpu = torch.cuda.device_count()\nelse:\n"
        "    torch.cuda.set_device(args.local_rank)\n    torch.distributed.init_process_group('nccl')\n"
        "net = nn.Linear(4, 2)\nif args.do_train:\n    net = nn.DataParallel(net)\n"
    )
    text = f"{_HEAD}import torch.distributed\n{_ARGS}{script}"
    new = convert_source(text, "train.py", Options(allow_ddp=True)).new_text
    assert "    ddp.setup(device_ids=None if args.do_train else [0], beside_ddp=True)\n" in new
