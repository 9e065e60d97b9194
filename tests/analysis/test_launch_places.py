"""Where `ddp.setup()` goes, and with which devices."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import Conversion, convert_files, convert_source
from dp2ddp.rules import Options

_IMPORTS = "import argparse\nimport os\nimport torch\nimport torch.nn as nn\n"

# A folder that must not be there is made below the choice of devices, in a function that comes back.
_SETTINGS = (
    "import time\nfrom pathlib import Path\nclass C:\n    def __init__(self, fresh=True):\n"
    "        self.folder = Path(time.strftime('%H%M%S'))\n        self.folder.mkdir(exist_ok=not fresh)\n"
    "    @classmethod\n    def parsed(cls, p):\n        a = p.parse_args()\n        if a.gpu:\n"
    "            os.environ['CUDA_VISIBLE_DEVICES'] = a.gpu\n        <return cls()>\n"
    "def start(c):\n    net = nn.DataParallel(Net())\n    torch.save(net.state_dict(), c.folder / 'net.pt')\n"
)
_EARLY = (
    _SETTINGS.replace("<", "")
    .replace(">", "")
    .replace("    a =", "    if not p:\n            return cls()\n        a =")
)

# Before the line in angle brackets comes `ddp.setup()`, or the call that is named.
PLACES = {
    "before the first line that builds": "<net = nn.DataParallel(Net())>",
    "after the environment is set": 'os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"\n<net = nn.DataParallel(Net())>',
    "after arguments are parsed and completed": (
        'parser = argparse.ArgumentParser()\ngroup = parser.add_argument_group("data")\n'
        'group.add_argument("--gpus", default=torch.cuda.device_count())\nargs = parser.parse_args()\n'
        "args.cuda = not args.no_cuda and torch.cuda.is_available()\n"
        'name = "{}-{}".format(args.arch, args.lr).lower()\n<print(args)>\nnet = nn.DataParallel(Net())'
    ),
    "above a paragraph of constants, and its comment": (
        "args = argparse.ArgumentParser().parse_args()\n\n<# data>\nkind = kinds[args.kind]\nroot = args.root\n"
        "data = kind(root)\nsize = 3\n\nnet = nn.DataParallel(Net())"
    ),
    "below constants that stand with what settles something": (
        "args = argparse.ArgumentParser().parse_args()\nroot = args.root\n<net = nn.DataParallel(Net(root))>"
    ),
    "below a constant that the processes are told": (
        "args = argparse.ArgumentParser().parse_args()\n\nids = args.ids.split()\n<net = nn.DataParallel(Net(), ids)>",
        "ddp.setup(device_ids=ids)",
    ),
    "in main, below a logger and what only chooses colours": (
        "import logging\nimport matplotlib.pyplot as plt\nplt.set_cmap('jet')\nlog = logging.getLogger()\n"
        "def main():\n    <net = nn.DataParallel(Net())>\nmain()"
    ),
    "above functions that call one another": (
        "<net = Net().cuda()>\ndef one(x):\n    return two(x) if len(x) - 4 else nn.parallel.data_parallel(net, x)\n"
        "def two(x):\n    return torch.cat([one(x[:4]), one(x[4:])])\none(x)"
    ),
    "below a file that is read, and a table": (
        "import json\nwith open('names.json') as file:\n    names = json.load(file)\ntable = torch.tensor([1, 2])\n"
        "def main():\n    args = argparse.ArgumentParser().parse_args()\n    <net = nn.DataParallel(Net(names))>\n"
        "if __name__ == '__main__':\n    main()"
    ),
    "below settings that a checkpoint holds": (
        "args = argparse.ArgumentParser().parse_args()\nif args.resume:\n"
        "    config = torch.load(args.resume)['config']\nelse:\n    config = None\n"
        "if args.gpu:\n    os.environ['CUDA_VISIBLE_DEVICES'] = args.gpu\n<net = nn.DataParallel(Net(config))>"
    ),
    "below functions that are only kept": (
        "kinds = {'small': lambda: nn.Linear(4, 2), 'large': lambda: nn.Linear(9, 2)}\n"
        "args = argparse.ArgumentParser().parse_args()\n<net = nn.DataParallel(kinds[args.kind]())>"
    ),
    "above what its line declares": (
        "def main():\n    args = argparse.ArgumentParser().parse_args()\n"
        '    os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu\n'
        "    <global cuda; cuda = torch.device('cuda')>\n    net = nn.DataParallel(Net()).to(cuda)\nmain()"
    ),
    "below a choice of torchvision's": (
        "import torchvision\ntorchvision.set_image_backend('PIL')\ntorchvision.disable_beta_transforms_warning()\n"
        "args = argparse.ArgumentParser().parse_args()\n<net = nn.DataParallel(Net())>"
    ),
    "before seeding": "seed = 1\n<torch.manual_seed(seed)>\nnet = nn.DataParallel(Net())",
    "in main, when a helper parses": (
        "def get_args():\n    parser = argparse.ArgumentParser()\n    return parser.parse_args()\ndef main():\n"
        "    args = get_args()\n    <net = nn.DataParallel(Net())>\nmain()"
    ),
    "in the guard, between parsing and main": (
        'def main(args):\n    net = nn.DataParallel(Net(), device_ids=args.gpus)\nif __name__ == "__main__":\n'
        "    parser = argparse.ArgumentParser()\n    args = parser.parse_args()\n    <print('start')>\n"
        "    main(args)",
        "ddp.setup(device_ids=args.gpus)",
    ),
    "under sys.exit(main())": "import sys\ndef main():\n    <net = nn.DataParallel(Net())>\nsys.exit(main())",
    "not in a helper that only seeds": (
        "def init_seeds():\n    torch.manual_seed(0)\ndef main():\n    <init_seeds()>\n"
        "    net = nn.DataParallel(Net())\nmain()"
    ),
    "behind the choice of devices in a function": (
        'def choose(gpu):\n    os.environ.update({"CUDA_VISIBLE_DEVICES": gpu})\n    print("using", gpu)\n'
        "args = argparse.ArgumentParser().parse_args()\nchoose(args.gpu)\n<net = nn.DataParallel(Net())>"
    ),
    "behind the choice of devices that a configuration makes": (
        "import yaml\ndef main(args):\n    with open(args.config) as file:\n        config = yaml.safe_load(file)\n"
        '    os.environ["CUDA_VISIBLE_DEVICES"] = config["gpu"]\n    <net = nn.DataParallel(Net())>\n'
        "main(argparse.ArgumentParser().parse_args())"
    ),
    "behind a choice of devices that is made on one path only": (
        "args = argparse.ArgumentParser().parse_args()\nif args.gpu is None:\n    print('all GPUs')\nelse:\n"
        '    os.environ.setdefault("CUDA_VISIBLE_DEVICES", args.gpu)\n<net = nn.DataParallel(Net())>'
    ),
    "in main, which parses, although the module seeds": (
        "torch.manual_seed(0)\ndef main():\n    parser = argparse.ArgumentParser()\n"
        '    args = parser.parse_args()\n    <net = nn.DataParallel(Net())>\nif __name__ == "__main__":\n    main()'
    ),
    "in main, which gets the parsed arguments, although the module prints": (
        "print(torch.__version__)\ndef main(args):\n    <net = nn.DataParallel(Net())>\n"
        'if __name__ == "__main__":\n    parser = argparse.ArgumentParser()\n    main(parser.parse_args())'
    ),
    "in main, which parses, within try": (
        "def main():\n    args = argparse.ArgumentParser().parse_args()\n    <net = nn.DataParallel(Net())>\ntry:\n"
        "    main()\nexcept KeyboardInterrupt:\n    print('stopped')"
    ),
    "in what fire calls": 'import fire\ndef main(gpu="0"):\n    <net = nn.DataParallel(Net())>\nfire.Fire(main)',
    "in what typer calls": (
        "import typer\napp = typer.Typer()\n@app.command()\ndef prepare():\n    print('ready')\n@app.command()\n"
        "def train(gpu: str):\n    <net = nn.DataParallel(Net())>\napp()"
    ),
    "in what hydra calls, which makes the folder of the run": (
        "import hydra\nstore = hydra.Store.instance()\nstore.add(name='train')\n@hydra.main('configs')\n"
        "def main(config):\n    <print(config)>\n    net = nn.DataParallel(Net())\n"
        "if __name__ == '__main__':\n    main()"
    ),
    "below the guard of a wrap, above which a folder is made": (
        "args = argparse.ArgumentParser().parse_args()\nif not os.path.exists(args.save):\n"
        "    os.mkdir(args.save)\nsettings = {'gpus': 1}\nn, many = settings['gpus'], args.many\n"
        "<net = Net()>\nif n != 1 and many:\n    net = nn.DataParallel(net).cuda()",
        "ddp.setup(device_ids=None if n != 1 and many else [0])",
    ),
    "in what parses and chooses devices, above what it makes once": (
        f"{_SETTINGS}if __name__ == '__main__':\n    p = argparse.ArgumentParser()\n    start(C.parsed(p))"
    ),
    "above what parses and may come back early": (
        f"{_EARLY}if __name__ == '__main__':\n    <start(C.parsed(argparse.ArgumentParser()))>"
    ),
    "literal devices": ("<net = nn.DataParallel(Net(), [2, 3])>", "ddp.setup(device_ids=[2, 3])"),
    "computed devices": (
        "n = 3\n<net = nn.DataParallel(Net(), device_ids=range(n))>",
        "ddp.setup(device_ids=range(n))",
    ),
    "devices named further down are written out": (
        "def main():\n    <print(1)>\n    ids = [0, 1]\n    net = nn.DataParallel(Net(), ids)\nmain()",
        "ddp.setup(device_ids=[0, 1])",
    ),
    "all devices that are counted before": (
        "n = torch.cuda.device_count()\n<net = nn.DataParallel(Net(), device_ids=range(n))>"
    ),
    "an output device is not a list of devices": "<net = nn.DataParallel(Net(), device_ids=None, output_device=0)>",
}


def launched(script: str) -> Conversion:
    return convert_source(script, "train.py", Options(select=frozenset({"DDP001"})))


@pytest.mark.parametrize("name", PLACES)
def test_place(name: str) -> None:
    found = PLACES[name]
    marked, call = (found, "ddp.setup()") if isinstance(found, str) else found
    script = _IMPORTS + marked.replace("<", "").replace(">", "") + "\n"
    lines = (_IMPORTS + marked).splitlines()
    target = next(line for line in lines if "<" in line)
    indent = target[: len(target) - len(target.lstrip())]
    result = launched(script).new_text.splitlines()
    following = target.replace("<", "").replace(">", "")
    above = [line for line in result[: result.index(following)] if line]
    assert above[-1] == indent + call
    assert sum("ddp.setup" in line for line in result) == 1


_NETS = (
    "import torch\nimport torch.nn as nn\nclass Net(nn.Module):\n"
    "    def __init__(self):\n        self.layer = nn.Linear(4, 2)\n"
)


@pytest.mark.parametrize(
    ("nets", "train", "lines"),
    [
        ("net = Net()\nnet = net.eval().to(device)\nhead = nn.Sequential(nn.Linear(4, 2))\n", "", [6, 8]),
        ("def build():\n    return Net()\nlayer = Net\nkinds = {'a': lambda: Net()}\nloss = nn.MSELoss()\n", "", []),
        ("torch.manual_seed(0)\nnet = Net()\n", "", []),
        (
            "class Mean(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.pool = nn.AvgPool2d(3, 1)\n"
            "        self.register_buffer('b', torch.FloatTensor(np.fft.fft(np.eye(8)).real))\n"
            "mean = Mean().to('cpu')\nflat = nn.Sequential(nn.Flatten())\n",
            "",
            [],
        ),
        ("net = Net()\n", "torch.manual_seed(0)\n", []),
        ("def seed():\n    torch.manual_seed(0)\nseed()\nnet = Net()\n", "", []),
    ],
)
def test_a_model_that_is_built_while_a_module_is_imported_is_noted(nets: str, train: str, lines: list[int]) -> None:
    files = {
        "train.py": f"{_IMPORTS}{train}import nets\nnet = nn.DataParallel(nn.Linear(4, 2))\n",
        "nets.py": _NETS + nets,
    }
    done = convert_files(files, ["train.py"], Options())
    notes = [note for note in done["nets.py"].notes if "before the processes start" in note.what]
    assert [note.span.start.line for note in notes] == lines


def test_importing_a_script_starts_no_processes() -> None:
    guard = 'def main():\n    net = nn.DataParallel(Net())\nif __name__ == "__main__":\n    main()\n'
    started = 'if __name__ == "__main__":\n    ddp.setup()\nnet = Net()'
    assert started in launched(f"{_IMPORTS}net = Net()\n{guard}").new_text
    # Importing these trains, builds what trains, or parses the arguments.
    parsed = "args = argparse.ArgumentParser().parse_args()\nnet = Net()\n"
    assert "\nddp.setup()\nnet = Net()" in launched(f"{_IMPORTS}{parsed}{guard}").new_text
    wrapped = "net = Net()\nnet = nn.DataParallel(net)\nif __name__ == '__main__':\n    train(net)\n"
    assert "\nddp.setup()\nnet = Net()" in launched(f"{_IMPORTS}{wrapped}").new_text
    assert "\nddp.setup()\nnet = Net()" in launched(f"{_IMPORTS}net = Net()\nnet = nn.DataParallel(net)\n").new_text


def test_a_module_that_only_defines_gets_a_note() -> None:
    result = launched(_IMPORTS + "def build():\n    return nn.DataParallel(Net())\n")
    assert not result.changed
    assert "call `ddp.setup()` in the script that is started" in result.notes[0].todo


def test_a_parameter_is_not_the_global_of_its_name() -> None:
    script = _IMPORTS + (
        "gpus = 'all'\nprint(gpus)\n"
        "def build(gpus):\n    return nn.DataParallel(Net(), device_ids=gpus)\n"
        "net = build([0, 1])\n"
    )
    assert "ddp.setup(device_ids=[0, 1])\nprint(gpus)" in launched(script).new_text
    result = launched(script + "other = build([2])\n")
    assert "ddp.setup()\nprint(gpus)" in result.new_text


@pytest.mark.parametrize(
    "first",
    [
        "os.makedirs('runs/1')",
        "os.path.exists('runs') or os.mkdir('runs')",
        "log = open('log.txt', 'a')",
        "net = nn.Linear(4, 2)",
        "seed = random.randint(0, 9)",
        "writer = SummaryWriter('runs')",
        "data = torch.load('data.pt')",
    ],
)
def test_what_is_settled_too_late_gets_a_note(first: str) -> None:
    script = _IMPORTS + (
        "import random\n"
        "from torch.utils.tensorboard import SummaryWriter\n"
        "def main():\n"
        f"    {first}\n"
        "    args = argparse.ArgumentParser().parse_args()\n"
        '    os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu\n'
        "    model = nn.DataParallel(Net())\n"
        "main()\n"
    )
    result = launched(script)
    assert f"    ddp.setup()\n    {first}\n" in result.new_text
    assert [note.span.start.line for note in result.notes] == [9, 10]
    assert "`--help` starts all of them" in result.notes[0].what
    assert "CUDA_VISIBLE_DEVICES is set after" in result.notes[1].what
    guarded = script.replace("nn.DataParallel(Net())", "nn.DataParallel(Net()) if args.several else Net()")
    assert "and so does a run in which `args.several` is false" in launched(guarded).notes[0].what


def test_what_is_settled_behind_a_wrap_gets_no_note() -> None:
    script = _IMPORTS + (
        "net = nn.DataParallel(Net())\n"
        "args = argparse.ArgumentParser().parse_args()\n"
        'os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu\n'
    )
    result = launched(script)
    assert "ddp.setup()\nnet =" in result.new_text
    assert not result.notes


def test_a_choice_of_devices_is_seen_where_a_library_brings_os_along() -> None:
    script = (
        "import argparse, sys, torch.nn as nn\nfrom elsewhere import *\nargs = argparse.ArgumentParser().parse_args()\n"
        'sys.stdout = Logger(args.log)\nos.environ["CUDA_VISIBLE_DEVICES"] = args.gpus\nnet = nn.DataParallel(Net())\n'
    )
    assert "= args.gpus\nddp.setup()\nnet" in launched(script).new_text


def test_of_several_commands_each_that_wraps_starts_the_processes() -> None:
    """What wraps nothing runs once, as before; and `--help` starts nothing."""
    wraps = "@main.command()\ndef {}(n):\n    {}net = nn.DataParallel(Net(n))\n"
    script = "import click\n@click.group()\ndef main():\n    pass\n@main.command()\ndef crf():\n    print(1)\n"
    script += wraps.format("train", "{0}print(n)\n    ") + wraps.format("test", "{0}") + "main()\n"
    new = convert_source(_IMPORTS + script.format(""), "train.py", Options()).new_text
    expected = script.format("ddp.setup()\n    ").replace("nn.DataParallel", "ddp.wrap_model")
    assert new == f"{_IMPORTS}import click\nimport dp2ddp_runtime as ddp\n{expected.partition('click' + chr(10))[2]}"


def test_a_log_that_a_module_begins_while_it_is_imported_is_noted() -> None:
    files = {
        "train.py": "import torch.nn as nn\nfrom opts import args\nnet = nn.DataParallel(nn.Linear(4, 2))\n",
        "opts.py": "import argparse\nimport logging\nargs = argparse.ArgumentParser().parse_args()\n"
        "def begin():\n    logging.basicConfig(handlers=[logging.FileHandler('log')])\nbegin()\n",
    }
    done = convert_files(files, ["train.py"], Options())
    assert [(note.rule, note.span.start.line) for note in done["opts.py"].notes] == [("DDP001", 5)]
    assert not done["train.py"].notes


@pytest.mark.parametrize(
    ("parsed", "is_late"),
    [
        ("", True),
        ("sys.argv[1:]", True),
        ("['--lr', '1']", False),
        ("words", False),
        ("words + ['-v']", False),
        ("sys.argv[1:] + words", True),
        ("more", False),
        ("argv", True),
        ("left", True),
        ("more) if given else parse(more, argv, [], **given", True),
    ],
)
def test_a_list_that_is_parsed_is_no_command_line(parsed: str, is_late: bool) -> None:
    script = "import sys\ndef parse(more, argv, left=None, **given):\n    words = list(sum(given.items(), ()))\n"
    script += f"    return parser.parse_args({parsed})\nparser = argparse.ArgumentParser()\n"
    script += "net = nn.Linear(4, 2)\nargs = parse(['-v'], sys.argv, a=1)\nnet = nn.DataParallel(net)\n"
    notes = convert_source(_IMPORTS + script, "train.py", Options()).notes
    assert any("the arguments are parsed after" in note.what for note in notes) == is_late


@pytest.mark.parametrize(
    ("parsed", "call"),
    [
        ("args = parser.parse_args()", "print(args)\n    sys.exit(args.func(args))"),
        ("args, _ = parser.parse_known_args()", "args.func(args)"),
        (
            "args = parser.parse_args()",
            "if hasattr(args, 'func'):\n        args.func(args)\n    else:\n        print()",
        ),
    ],
)
def test_of_the_functions_that_argparse_picks_each_that_wraps_starts_the_processes(parsed: str, call: str) -> None:
    script = _IMPORTS + "def pre(args):\n    print('pre')\n"
    for name in ("fit", "evaluate"):
        script += f"def {name}(args):\n    net = Net()\n    if args.{name}:\n        net = nn.DataParallel(net)\n"
    script += "def main():\n    parser = argparse.ArgumentParser()\n    sub = parser.add_subparsers()\n"
    for name in ("pre", "fit", "evaluate"):
        script += f"    {name}_parser = sub.add_parser('{name}')\n    {name}_parser.set_defaults(func={name})\n"
    script += f"    {parsed}\n    {call}\nif __name__ == '__main__':\n    main()\n"
    new = launched(script).new_text
    assert new.count("ddp.setup(") == 2
    for name in ("fit", "evaluate"):
        setup = f"    ddp.setup(device_ids=None if args.{name} else [0])\n"
        assert f"def {name}(args):\n{setup}    net = Net()" in new
    # What all of them need is built before one of them is picked: any of their conditions may be what counts.
    built = launched(script.replace(f"    {parsed}", f"    net = nn.Linear(4, 2)\n    {parsed}")).new_text
    assert built.count("ddp.setup(") == 1
    assert f"    ddp.setup()\n    net = nn.Linear(4, 2)\n    {parsed}" in built
    late = launched(script.replace(f"    {call}", f"    net = nn.Linear(4, 2)\n    {call}")).new_text
    assert "    ddp.setup(device_ids=None if args.fit or args.evaluate else [0])\n    net = nn.L" in late


def test_scripts_that_share_what_parses_start_there() -> None:
    settings = _IMPORTS + _SETTINGS.replace("<", "").replace(">", "")
    script = (
        "import argparse\nimport torchvision\nimport torch.nn as nn\nfrom settings import C\nseed = 1\ndef main(c):\n{}"
    )
    script += "    data = torchvision.datasets.MNIST(seed, download=True)\nif __name__ == '__main__':\n"
    script += "    main(C.parsed(argparse.ArgumentParser()))\n"
    files = {
        f"{name}.py": script.format(f"    net = nn.DataParallel(nn.Linear(4, 2){ids})\n")
        for name, ids in (("train", ""), ("test", ", device_ids=[0, 1]"))
    }
    done = convert_files({**files, "settings.py": settings}, list(files), Options())
    texts = {name: each.new_text for name, each in done.items()}
    assert texts["settings.py"].count("ddp.setup") == 1
    assert "        ddp.setup()\n        return cls()\n" in texts["settings.py"]
    for name in files:
        assert "ddp.setup" not in texts[name]
        assert "ddp.main_first()" in texts[name]  # it runs behind the start, wherever its file comes
    assert [note.what.split(",")[0] for note in done["settings.py"].notes] == [
        "every script that comes here starts processes"
    ]
    assert not done["test.py"].notes


def test_a_log_that_is_begun_while_a_module_is_imported_is_noted() -> None:
    begun = "import logging\ndef begin(at=None):\n    if at:\n        logging.basicConfig({})\nbegin({})\n"
    name = "filename='log'"
    for given, to, notes in ((name, "1", 1), (name, "*names", 1), (name, "", 0), ("level=logging.INFO", "1", 0)):
        train = f"{_IMPORTS}import begun\nnet = nn.DataParallel(Net())\nbegun.begin('out')\n"
        files = {"train.py": train, "begun.py": begun.format(given, to)}
        found = convert_files(files, ["train.py"], Options()).get("begun.py")
        assert sum("this log is begun while" in note.what for note in (found.notes if found else ())) == notes
