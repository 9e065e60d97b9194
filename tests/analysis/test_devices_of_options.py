"""Devices that options and configurations name or make visible, and guards that are each script's own."""

from __future__ import annotations

import textwrap

import pytest

from dp2ddp.convert.pipeline import Conversion, convert_files, convert_source
from dp2ddp.rules import Options

_HEAD = "import argparse\nimport os\nimport torch\nimport torch.nn as nn\n"
_ARGS = "args = argparse.ArgumentParser().parse_args()\n"


def converted(script: str) -> Conversion:
    return convert_source(_HEAD + textwrap.dedent(script), "train.py", Options())


@pytest.mark.parametrize(
    ("sets", "ids", "given"),
    [
        ("args.gpu", "[0, 1]", None),
        ("'2,3'", "range(2)", "[2, 3]"),
        ("'2,3,4'", "[0, 2]", "[2, 4]"),
        ("'0,1'", "[0, 1, 2]", None),
        ("args.gpu", "[int(i) for i in args.gpu.split(',')]", "[int(i) for i in args.gpu.split(',')]"),
        ("','.join(map(str, args.gpu))", "args.gpu", "args.gpu"),
    ],
)
def test_devices_count_those_that_are_made_visible_behind_the_start(sets: str, ids: str, given: str | None) -> None:
    script = f"{_ARGS}net = nn.Linear(4, 2)\nos.environ['CUDA_VISIBLE_DEVICES'] = {sets}\n"
    result = converted(f"{script}net = nn.DataParallel(net, device_ids={ids})\n")
    assert f"ddp.setup(device_ids={given or ids})\nnet = nn.Linear" in result.new_text
    assert [note.what.split()[0] for note in result.notes] == ["CUDA_VISIBLE_DEVICES"] * (given is None)


def test_what_counts_the_gpus_that_another_option_makes_visible_says_how_many_not_which() -> None:
    """As options of detectors have it: `--gpus 2,3` makes `opt.gpus` `[0, 1]`."""
    count = "args.gpus_str = args.gpu\nargs.gpus = [i for i in range(len(args.gpu.split(',')))]\n"
    script = f"{_ARGS}{count}net = nn.Linear(4, 2)\nos.environ['CUDA_VISIBLE_DEVICES'] = args.gpus_str\n"
    result = converted(f"{script}net = nn.DataParallel(net, device_ids=args.gpus)\n")
    assert "ddp.setup(device_ids=args.gpus_str)\nnet = nn.Linear" in result.new_text
    assert not result.notes
    for asked, is_freed in (("len(args.gpus) > 1", False), ("args.multi", True)):
        text = converted(
            f"{script}if {asked}:\n    net = nn.DataParallel(net, device_ids=args.gpus)\nprint(net)\n"
        ).new_text
        assert ("device_ids=args.gpus)\nddp.release_idle()\nprint" in text) == is_freed


@pytest.mark.parametrize(
    ("body", "above"),
    [
        ("options.classes = len(data)\n    return options", True),
        ("options.gpu = data\n    return options", False),
        ("options = copy(options)\n    return options", False),
        ("return options if data else None", False),
    ],
)
def test_options_that_a_function_fills_in_and_gives_back_are_the_same(body: str, above: bool) -> None:
    script = (
        f"def filled(options, data):\n    {body}\ndef main(args):\n    data = read()\n    args = filled(args, data)\n"
    )
    result = converted(f"{_ARGS}{script}    net = nn.DataParallel(net, device_ids=args.gpu)\nmain(args)\n")
    assert ("def main(args):\n    ddp.setup(device_ids=args.gpu)\n" in result.new_text) == above


@pytest.mark.parametrize(
    ("read", "gpus"),
    [
        ("config = importlib.import_module(args.config).PARAMS", "config['gpus']"),
        ("from config import cfg\ncfg.merge_from_list(args.opts)", "cfg.gpus"),
    ],
)
def test_gpus_of_a_configuration_are_given_below_it(read: str, gpus: str) -> None:
    log = "log = logging.FileHandler('log')\n"
    script = f"import importlib\nimport logging\n{_ARGS}{read}\n{log}os.environ['CUDA_VISIBLE_DEVICES'] = {gpus}\n"
    result = converted(f"{script}net = nn.DataParallel(nn.Linear(4, 2))\n")
    assert f"{read.splitlines()[-1]}\nddp.setup(device_ids={gpus})\n{log}" in result.new_text
    assert not result.notes


def test_devices_that_are_made_visible_on_a_condition_are_not_counted_among() -> None:
    """`[0, 1]` are GPUs 0 and 1 where the condition is false."""
    script = f"{_ARGS}net = nn.Linear(4, 2)\nif args.far: os.environ['CUDA_VISIBLE_DEVICES'] = '2,3'\n"
    result = converted(f"{script}net = nn.DataParallel(net, device_ids=[0, 1])\n")
    assert "ddp.setup(device_ids=[0, 1])\nnet = nn.Linear" in result.new_text
    assert [note.what.split()[0] for note in result.notes] == ["CUDA_VISIBLE_DEVICES"]


def test_settings_that_copy_a_missing_file_first_come_before_the_start() -> None:
    script = """
        import shutil
        def load():
            args = argparse.ArgumentParser().parse_args()
            {}
            args.gpus = args.gpus.split(',')
            return args
        def main():
            args = load()
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(args.gpus)
            net = nn.DataParallel(nn.Linear(4, 2), device_ids=args.gpus)
        main()
        """
    result = converted(script.format("if not os.path.exists('c.yml'): shutil.copyfile('c.example', 'c.yml')"))
    assert '",".join(args.gpus)\n    ddp.setup(device_ids=args.gpus)\n' in result.new_text
    assert [note.what[:40] for note in result.notes] == ["every process that torchrun starts writes"[:40]]
    result = converted(script.format("shutil.copyfile('c.example', 'c.yml')"))
    assert "parse_args()\n    ddp.setup()\n    shutil" in result.new_text  # inside, where all copy it together
    assert any(note.what.startswith("CUDA_VISIBLE_DEVICES is set after") for note in result.notes)


_OPTIONS = """\
import argparse
import torch

class Options:
    def parse(self):
        parser = argparse.ArgumentParser()
        parser.add_argument("--gpu_ids", default="0")
        opt = parser.parse_args()
        opt.gpu_ids = [int(i) for i in opt.gpu_ids.split(",")]
        if len(opt.gpu_ids) > 0:
            torch.cuda.set_device(opt.gpu_ids[0])
        return opt
"""
_TRAIN = """\
import torch.nn as nn
from options import Options

opt = Options().parse()
net = nn.Linear(4, 2)
if len(opt.gpu_ids) > 0:
    net = nn.DataParallel(net, opt.gpu_ids)
"""


def test_a_gpu_that_options_make_the_current_one_is_left_to_the_start() -> None:
    files = {"train.py": _TRAIN, "options.py": _OPTIONS}
    done = convert_files(files, ["train.py"], Options())
    assert "opt = Options().parse()\nddp.setup(device_ids=opt.gpu_ids)\nnet = " in done["train.py"].new_text
    assert done["options.py"].new_text.endswith('split(",")]\n        return opt\n')
    assert not any(each.notes for each in done.values())
    files["show.py"] = "from options import Options\nprint(Options().parse())\n"
    (note,) = convert_files(files, ["train.py", "show.py"], Options())["options.py"].notes
    assert "no longer choose this GPU" in note.what


_PRINTED = """\
        print(opt)
        with open(opt.name + ".txt", "MODE") as file:
            file.write(str(opt))
        opt.gpu_ids ="""


@pytest.mark.parametrize("mode", ["w", "wt", "a", "w+"])
def test_options_that_are_written_down_as_they_are_parsed_come_before_the_start(mode: str) -> None:
    """What is added to a file would be so by each process that torchrun starts."""
    options = _OPTIONS.replace("        opt.gpu_ids =", _PRINTED.replace("MODE", mode), 1)
    done = convert_files({"train.py": _TRAIN, "options.py": options}, ["train.py"], Options())
    is_early = "opt = Options().parse()\nddp.setup(device_ids=opt.gpu_ids)" in done["train.py"].new_text
    assert is_early == mode.startswith("w") & (mode != "w+")


def test_what_is_read_again_before_the_start_is_noted() -> None:
    """torchrun's processes write it each by itself, and one may read what another is writing."""
    for read, noted in (("", 0), ('        print(open(opt.name + ".txt").read())\n', 1)):
        written = _PRINTED.replace("MODE", "w").replace("        opt.gpu_ids =", f"{read}        opt.gpu_ids =")
        files = {"train.py": _TRAIN, "options.py": _OPTIONS.replace("        opt.gpu_ids =", written, 1)}
        found = convert_files(files, ["train.py"], Options())["options.py"].notes
        assert sum("one may read what another is writing" in note.what for note in found) == noted


def test_options_that_are_parsed_again_to_test_say_the_same() -> None:
    """A project's own `mkdir`, which asks first, is no reason to start the processes above them (MeshCNN)."""
    head, call = "import models\nfrom options import Options\n", "opt = Options().parse()\nnet = models.make(opt)\n"
    files = {
        "util.py": "import os\ndef mkdir(path):\n    if not os.path.exists(path):\n        os.makedirs(path)\n",
        "options.py": f"import util\n{_OPTIONS.replace('return opt', 'util.mkdir(opt.name); return opt')}",
        "models.py": "from torch import nn\ndef make(opt):\n    return nn.DataParallel(nn.Linear(4, 2), opt.gpu_ids)\n",
        "test.py": f"{head}def test():\n{textwrap.indent(call, '    ')}if __name__ == '__main__':\n    test()\n",
        "train.py": f"{head}from test import test\n{call}test()\n",
    }
    done = convert_files(files, ["train.py", "test.py"], Options())
    for name, indent in (("train.py", ""), ("test.py", "    ")):
        assert f"parse()\n{indent}ddp.setup(device_ids=opt.gpu_ids)\n{indent}net = " in done[name].new_text


@pytest.mark.parametrize("made", ["parse(True)", "argparse.Namespace(multi=True)"])
def test_whether_a_model_is_wrapped_is_not_known_from_arguments_of_the_same_name(made: str) -> None:
    """No wrap compares that: one process would go on without a word where the second model asks for more."""
    script = "def parse(x): return argparse.ArgumentParser().parse_args()\ndef make(opt):\n    net = nn.Linear(4, 2)\n"
    script += "    return nn.DataParallel(net) if opt.multi else net\ndef test():\n    opt = parse(1)\n    make(opt)\n"
    for calls, given in (("", "device_ids=None if opt.multi else [0]"), ("test()\n", "")):
        text = converted(f"{script}opt = parse(0)\nnet = make(opt)\n{calls}").new_text
        assert f"opt = parse(0)\nddp.setup({given})\nnet = " in text


def test_a_class_that_is_looked_for_in_a_module_is_one_of_those_that_derive() -> None:
    files = {
        "train.py": "import importlib\nimport cycle_model\nfrom base import Base\nfrom options import Options\n"
        "\nopt = Options().parse()\nmodule = importlib.import_module(opt.m)\nfor name, cls in vars(module).items():\n"
        "    if name == opt.model and issubclass(cls, Base):\n        found = cls\nmodel = found(opt)\nmodel.build()\n",
        "options.py": _OPTIONS,
        "base.py": "import torch.nn as nn\nclass Base:\n    def __init__(self, opt):\n        self.opt = opt\n"
        "    def build(self):\n        self.net = nn.DataParallel(nn.Linear(4, 2), self.opt.gpu_ids)\n",
        "cycle_model.py": "from base import Base\nclass Cycle(Base):\n    def __init__(self, opt):\n"
        "        Base.__init__(self, opt)\n",
    }
    done = convert_files(files, ["train.py"], Options())
    assert "ddp.setup(device_ids=opt.gpu_ids)\nmodel = found(opt)\n" in done["train.py"].new_text
    assert not any(each.notes for each in done.values())


def test_a_script_that_only_calls_a_part_inside_of_its_wrap_stays_one_process() -> None:
    script = "net = nn.DataParallel(nn.Sequential(nn.Linear(4, 2)))\ny = net{}(torch.ones(3, 4))\n"
    assert not converted(script.format(".module.first.second")).changed
    assert converted(script.format("")).changed


_GUARDED = """
import torch.nn as nn

class Task:
    def __init__(self, args):
        self.several = args.several if "several" in args else False
        self.net = nn.Linear(4, 2)
        if self.several:
            self.net = nn.DataParallel(self.net)
"""
_CALLED = """
import torch.nn as nn

class Task:
    def __init__(self, args):
        self.net = nn.Linear(4, 2)

    def wrap(self):
        self.net = nn.DataParallel(self.net)
"""


@pytest.mark.parametrize(
    ("nets", "one", "other", "given"),
    [
        (_GUARDED, "", "args.several = args.gpus\n", "None if 'several' in args and args.several else [0]"),
        (
            _CALLED,
            "if not args.data.endswith('_x'):\n    task.wrap()\n",
            "",
            "[0] if args.data.endswith('_x') else None",
        ),
        (_CALLED, "if args.all:\n    task.wrap()\n", "task.wrap()\n", "None if args.all else [0]"),
    ],
)
def test_a_guard_is_the_script_s_own_where_several_share_what_wraps(
    nets: str, one: str, other: str, given: str
) -> None:
    start = f"{_HEAD}from nets import Task\n{_ARGS}"
    made = "task = Task(args)\n"
    files = {"one.py": f"{start}{made}{one}", "two.py": f"{start}{made}{other}"}
    done = convert_files({**files, "nets.py": nets}, list(files), Options())
    assert f"ddp.setup(device_ids={given})" in done["one.py"].new_text


def test_what_runs_the_program_as_it_parses_is_not_late() -> None:
    script = "import fire\ndef train():\n    nn.DataParallel(nn.Linear(4, 2))\n\ndef test():\n    train()\n\n"
    result = converted(f"{script}if __name__ == '__main__':\n    fire.Fire()\n")
    assert "    ddp.setup()\n    fire.Fire()\n" in result.new_text
    assert not result.notes


@pytest.mark.parametrize("between", ["", "args.gpu += 1"])
def test_a_gpu_that_is_picked_where_nothing_is_wrapped_is_left_as_it_is(between: str) -> None:
    """Elsewhere it is None, which means a rank's own, unless it is changed; as ImageNet's example does it."""
    moves = "x = torch.ones(4, 2).cuda(args.gpu, non_blocking=True).to(args.gpu)\n"
    picks = (
        f"    torch.cuda.set_device(args.gpu)\n    {between}\n    net.cuda(args.gpu)\n    at = f'cuda:{{args.gpu}}'\n"
        "    there = torch.device(f'cuda:{args.gpu}')\n"
    )
    wraps = f"{_ARGS}print(1)\nnet = nn.Linear(2, 2)\nif args.gpu is None:\n    net = nn.DataParallel(net)\nelse:\n"
    new = convert_source(_HEAD + wraps + picks + moves, "train.py", Options()).new_text
    assert "ddp.setup(device_ids=None if args.gpu is None else [args.gpu])\n" in new
    assert (picks + moves in new) == (not between)


@pytest.mark.parametrize("line", ["torch.cuda.device_count()", "torch.zeros(1).cuda()"])
def test_what_uses_cuda_while_it_is_imported_stands_below_the_runtime(line: str) -> None:
    """A rank has to see its own GPU first: the script makes others visible before that."""
    lib = f"import torch\nx = {line}\n"
    train = (
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1,0'\nfrom torch import nn\nimport lib\n\n"
        "net = nn.DataParallel(nn.Linear(2, 2))\n"
    )
    new = convert_files({"train.py": train, "lib.py": lib}, ["train.py"], Options())["train.py"].new_text
    assert "import dp2ddp_runtime as ddp\nimport lib\n\nddp.setup" in new


def test_the_folder_that_a_script_is_started_in_can_be_asked_for_before() -> None:
    script = f"import sys\n{_HEAD}sys.path.append(os.getcwd())\nimport nets\n\nprint(1)\n"
    new = convert_source(f"{script}net = nn.DataParallel(nn.Linear(4, 2))\n", "train.py", Options()).new_text
    assert "ddp.setup()\nprint(1)\n" in new


_AS_IMAGENET_S_EXAMPLE = """\
import os
import torch
import torch.nn as nn
import torch.distributed as dist
import torch.multiprocessing as mp
import options

def main():
    args = options.parser.parse_args()
    if args.gpu is not None:
        print('one')
    if args.url == 'env://' and args.world_size == -1:
        args.world_size = int(os.environ['WORLD_SIZE'])
    args.distributed = args.world_size > 1 or args.multiprocessing_distributed
    ngpus = torch.cuda.device_count()
    if args.multiprocessing_distributed:
        args.world_size = ngpus * args.world_size
        mp.spawn(work, nprocs=ngpus, args=(ngpus, args))
    else:
        work(args.gpu, ngpus, args)

def work(gpu, ngpus, args):
    args.gpu = gpu
    net = nn.Linear(4, 2)
    if args.distributed:
        dist.init_process_group('nccl')
        if args.gpu is not None:
            torch.cuda.set_device(args.gpu)
        net = nn.parallel.DistributedDataParallel(net)
    elif args.gpu is not None:
        net = net.cuda(args.gpu)
    else:
        net = nn.DataParallel(net)
    print(net.cuda(args.gpu))

main()
"""


def test_a_gpu_that_is_picked_beside_ddp_of_which_is_decided_below_the_start() -> None:
    options = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--gpu', type=int)\n"
    files = {"train.py": _AS_IMAGENET_S_EXAMPLE, "options.py": options}
    new = convert_files(files, ["train.py"], Options(allow_ddp=True))["train.py"].new_text
    assert "        ddp.setup(device_ids=None if args.gpu is None else [args.gpu], beside_ddp=True)\n" in new
    assert new.count("cuda(args.gpu)") == 2


@pytest.mark.parametrize(
    ("script", "wanted"),
    [
        (
            "def main():\n    n = args.n = torch.cuda.device_count()\n    net = nn.DataParallel(nn.Linear(4, 2))\n"
            "    print(args.n)\nmain()\n",
            "n = args.n = ddp.device_count()\n",
        ),
        (
            "def main():\n    n = torch.cuda.device_count()\n    work(n)\ndef work(m):\n    def inner():\n"
            "        print(m)\n    net = nn.DataParallel(nn.Linear(4, 2))\n    inner()\nmain()\n",
            "    n = ddp.device_count()\n",
        ),
        (
            "def main():\n    global n\n    n = torch.cuda.device_count()\n    net = nn.DataParallel(nn.Linear(4, 2))\n"
            "main()\n",
            "    n = ddp.device_count()\n",
        ),
        ("n = torch.cuda.device_count()\nnet = nn.DataParallel(nn.Linear(4, 2))\n", "n = ddp.device_count()\n"),
        (
            "def one(net):\n    return nn.DataParallel(net)\ndef two(net):\n    return nn.DataParallel(net, [0, 1])\n"
            "net = nn.Linear(4, 2)\nif args.a:\n    net = one(net)\nelif args.b:\n    net = two(net)\n",
            "ddp.setup(device_ids=None if args.a or args.b else [0])\n",
        ),
        (
            "net = nn.Linear(4, 2)\nif args.gpu is None:\n    net = nn.DataParallel(net)\n"
            "elif not args.low_rank:\n    net = net.cuda(args.gpu)\n",
            "ddp.setup(device_ids=None if args.gpu is None else [0])\n",
        ),
    ],
)
def test_what_is_read_or_asked_after_all(script: str, wanted: str) -> None:
    assert wanted in converted(_ARGS + script).new_text


def test_a_gpu_that_setup_is_not_given_is_not_left_to_it() -> None:
    """Of two scripts that start in one place, each with other devices."""
    start = "import argparse\ndef start(build):\n    args = argparse.ArgumentParser().parse_args()\n    build(args)\n"
    train = (
        f"{_HEAD}from common import start\ndef build(args):\n    net = nn.Linear(4, 2)\n    if args.gpu is None:\n"
        "        net = nn.DataParallel(net, IDS)\n    else:\n        net.cuda(args.gpu)\n    print(net)\nstart(build)\n"
    )
    files = {"common.py": start, "a.py": train.replace("IDS", "None"), "b.py": train.replace("IDS", "[0, 1]")}
    done = convert_files(files, ["a.py", "b.py"], Options())
    assert "ddp.setup()\n" in done["common.py"].new_text
    assert "    else:\n        net.cuda()\n" in done["a.py"].new_text
