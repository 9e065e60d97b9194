"""Where `ddp.setup()` goes, and with which devices."""

from __future__ import annotations

import pytest

from dp2ddp.pipeline import Conversion, convert_source
from dp2ddp.rules import Options

_IMPORTS = "import argparse\nimport os\nimport torch\nimport torch.nn as nn\n"

# Before the line in angle brackets comes the call that follows `->`.
PLACES = {
    "before the first line that builds": ("<net = nn.DataParallel(Net())>", "ddp.setup()"),
    "after the environment is set": (
        'os.environ["CUDA_VISIBLE_DEVICES"] = "2,3"\n<net = nn.DataParallel(Net())>',
        "ddp.setup()",
    ),
    "after arguments are parsed and completed": (
        "parser = argparse.ArgumentParser()\n"
        'group = parser.add_argument_group("data")\n'
        'group.add_argument("--gpus", default=torch.cuda.device_count())\n'
        "args = parser.parse_args()\n"
        "args.cuda = not args.no_cuda and torch.cuda.is_available()\n"
        'name = "{}-{}".format(args.arch, args.lr).lower()\n'
        "<print(args)>\n"
        "net = nn.DataParallel(Net())",
        "ddp.setup()",
    ),
    "before seeding": ("seed = 1\n<torch.manual_seed(seed)>\nnet = nn.DataParallel(Net())", "ddp.setup()"),
    "in main, after its own parsing": (
        "def main():\n"
        "    parser = argparse.ArgumentParser()\n"
        "    args = parser.parse_args()\n"
        "    <torch.manual_seed(args.seed)>\n"
        "    net = nn.DataParallel(Net())\n"
        'if __name__ == "__main__":\n'
        "    main()",
        "ddp.setup()",
    ),
    "in main, when a helper parses": (
        "def get_args():\n"
        "    parser = argparse.ArgumentParser()\n"
        "    return parser.parse_args()\n"
        "def main():\n"
        "    args = get_args()\n"
        "    <net = nn.DataParallel(Net())>\n"
        "main()",
        "ddp.setup()",
    ),
    "in the guard, between parsing and main": (
        "def main(args):\n"
        "    net = nn.DataParallel(Net(), device_ids=args.gpus)\n"
        'if __name__ == "__main__":\n'
        "    parser = argparse.ArgumentParser()\n"
        "    args = parser.parse_args()\n"
        "    <print('start')>\n"
        "    main(args)",
        "ddp.setup(device_ids=args.gpus)",
    ),
    "under sys.exit(main())": (
        "import sys\ndef main():\n    <net = nn.DataParallel(Net())>\nsys.exit(main())",
        "ddp.setup()",
    ),
    "not in a helper that only seeds": (
        "def init_seeds():\n"
        "    torch.manual_seed(0)\n"
        "def main():\n"
        "    <init_seeds()>\n"
        "    net = nn.DataParallel(Net())\n"
        "main()",
        "ddp.setup()",
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
    "all devices need no argument": (
        "<net = nn.DataParallel(Net(), device_ids=list(range(torch.cuda.device_count())))>",
        "ddp.setup()",
    ),
    "an output device is not a list of devices": (
        "<net = nn.DataParallel(Net(), device_ids=None, output_device=0)>",
        "ddp.setup()",
    ),
}


def launched(script: str) -> Conversion:
    return convert_source(script, "train.py", Options(select=frozenset({"DDP001"})))


@pytest.mark.parametrize("name", PLACES)
def test_place(name: str) -> None:
    marked, call = PLACES[name]
    script = _IMPORTS + marked.replace("<", "").replace(">", "") + "\n"
    lines = (_IMPORTS + marked).splitlines()
    target = next(line for line in lines if "<" in line)
    indent = target[: len(target) - len(target.lstrip())]
    result = launched(script).new_text.splitlines()
    following = target.replace("<", "").replace(">", "")
    assert result[result.index(following) - 1] == indent + call
    assert sum("ddp.setup" in line for line in result) == 1


def test_devices_that_are_not_known_get_a_note() -> None:
    script = _IMPORTS + "print(1)\nids = compute()\nnet = nn.DataParallel(Net(), device_ids=ids)\n"
    result = launched(script)
    assert "ddp.setup()\nprint(1)" in result.new_text
    assert [n.rule for n in result.notes] == ["DDP001"]
    assert "not known where the processes start" in result.notes[0].what


def test_two_wraps_with_different_devices_get_a_note() -> None:
    script = _IMPORTS + "a = nn.DataParallel(Net(), [0, 1])\nb = nn.DataParallel(Net(), [2, 3])\n"
    result = launched(script)
    assert "ddp.setup(device_ids=[0, 1])" in result.new_text
    assert len(result.notes) == 1


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
    assert "not known where the processes start" in result.notes[0].what
