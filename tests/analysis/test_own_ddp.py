"""Scripts that can also set up DistributedDataParallel themselves: refused, or converted with --allow-ddp."""

from __future__ import annotations

import textwrap

import pytest

from dp2ddp.convert.pipeline import Conversion, convert_files, convert_source
from dp2ddp.errors import BadInput
from dp2ddp.rules import Options

_HEAD = """\
import argparse
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
parser = argparse.ArgumentParser()
args = parser.parse_args()
"""


def converted(body: str, *, allow: bool = True) -> Conversion:
    return convert_source(_HEAD + textwrap.dedent(body).lstrip("\n"), "train.py", Options(allow_ddp=allow))


def lines_around_setup(conversion: Conversion) -> list[str]:
    lines = conversion.new_text.splitlines()
    at = next(index for index, line in enumerate(lines) if "ddp.setup(" in line)
    return [line.strip() for line in lines[at - 1 : at + 2]]


_EITHER = "net = DDP(Net()) if args.distributed else nn.DataParallel(Net())"
_JOINS = f"""
if args.distributed:
    dist.init_process_group("nccl")
{_EITHER}
"""

# Each with the test under which setup stands, and the line that follows it.
CONDITIONS = {
    "a flag": (f"net = Net()\nprint(net){_JOINS}", "if not args.distributed:", "net = Net()"),
    "the other way round": (
        """
        net = Net()
        if not args.distributed:
            net = nn.DataParallel(net)
        else:
            dist.init_process_group("nccl")
            net = DDP(net)
        """,
        "if not args.distributed:",
        "net = Net()",
    ),
    "a rank": (
        """
        net = Net()
        if args.local_rank != -1:
            dist.init_process_group("nccl")
            net = DDP(net)
        elif torch.cuda.device_count() > 1:
            net = nn.DataParallel(net)
        """,
        "if args.local_rank == -1:",
        "net = Net()",
    ),
    "a flag that is computed from one that is set": (
        'torch.manual_seed(0)\nargs.world_size = int(os.environ.get("WORLD_SIZE", 1))\n'
        f"args.distributed = args.world_size > 1{_JOINS}",
        "if args.world_size <= 1:",
        "args.distributed = args.world_size > 1",
    ),
    "a flag that may be set again": (
        "torch.manual_seed(0)\nargs.distributed = args.world_size > 1\n"
        f"if args.gpu is not None:\n    args.distributed = False{_JOINS}",
        "if not args.distributed:",
        "if args.distributed:",
    ),
    "a plain name": (
        'distributed = False\nprint("start")\ndistributed = args.world_size > 1'
        + _JOINS.replace("args.distributed", "distributed"),
        "if args.world_size <= 1:",
        'print("start")',
    ),
    "a function with a name of its own, and an object with an attribute of its own": (
        f'def show(text):\n    args = (text, 2)\n    print(*args)\nshow("start"){_JOINS}'
        "class Kept:\n    def __init__(self, it):\n        self.distributed = it\nKept(args.distributed)\n",
        "if not args.distributed:",
        'show("start")',
    ),
    "in main, before a declaration": (
        'print(args)\ndef main():\n    "Train."\n    global args, best\n    args.distributed = args.world_size > 1'
        + textwrap.indent(_JOINS, "    ")
        + "main()\n",
        "if args.world_size <= 1:",
        "args.distributed = args.world_size > 1",
    ),
    "a worker function that is spawned": (
        """
        def worker(gpu, args):
            dist.init_process_group("nccl", rank=gpu, world_size=4)
            net = DDP(Net())
        def single(args):
            net = nn.DataParallel(Net())
        if args.multiprocessing:
            mp.spawn(worker, nprocs=4, args=(args,))
        else:
            single(args)
        """,
        "if not args.multiprocessing:",
        "if args.multiprocessing:",
    ),
    "a function that returns early": (
        f"""
        def join():
            if "RANK" in os.environ:
                args.gpu = int(os.environ["LOCAL_RANK"])
            elif "SLURM_PROCID" in os.environ:
                args.gpu = 0
            else:
                args.distributed = False
                return
            dist.init_process_group("nccl")
        join()
        {_EITHER}
        """,
        "if not ('RANK' in os.environ or 'SLURM_PROCID' in os.environ):",
        "join()",
    ),
    "only the wrapper is seen": (
        f"from tools import join\n{_EITHER}",
        "if not args.distributed:",
        _EITHER.replace("nn.DataParallel", "ddp.wrap_model"),
    ),
    "a part of the test that isn't known there": (
        """
        def build(gpu):
            if args.distributed and gpu is not None:
                dist.init_process_group("nccl")
                return DDP(Net())
            return nn.DataParallel(Net())
        net = build(0)
        """,
        "if not args.distributed:",
        "net = build(0)",
    ),
    "another rank's name, and more": (
        f"""
        def main():
            print("start")
            if args.local_rank == -1 or args.no_cuda:
                args.n_gpu = torch.cuda.device_count()
                args.distributed = False
            else:
                torch.cuda.set_device(args.local_rank)
                dist.init_process_group(backend="nccl")
                args.distributed = True
            {_EITHER}
        main()
        """,
        "if args.local_rank == -1 or args.no_cuda:",
        'print("start")',
    ),
    "decided in a constructor": (
        """
        class Trainer:
            def __init__(self, config):
                self.rank = config["local_rank"]
                if self.rank == -1 or config["no_cuda"]:
                    self.gpus = torch.cuda.device_count()
                else:
                    dist.init_process_group("nccl")
                net = Net()
                self.net = DDP(net) if self.rank != -1 else nn.DataParallel(net)
        trainer = Trainer(vars(parser.parse_args()))
        """,
        'if self.rank == -1 or config["no_cuda"]:',
        'if self.rank == -1 or config["no_cuda"]:',
    ),
}


@pytest.mark.parametrize("shape", CONDITIONS)
def test_processes_start_where_the_script_sets_up_nothing(shape: str) -> None:
    body, test, following = CONDITIONS[shape]
    assert lines_around_setup(converted(body)) == [test, "ddp.setup(beside_ddp=True)", following]


_ALWAYS = 'dist.init_process_group("nccl")\nnet = nn.DataParallel(Net())\n'
_LATE = """
def run():
    args.distributed = bool(os.environ.get("SLURM_NTASKS"))
    if args.distributed:
        dist.init_process_group("nccl")
    return nn.DataParallel(Net())
nets = [run() for _ in range(2)]
"""


def test_without_a_condition_nothing_is_converted_and_the_advice_works() -> None:
    with pytest.raises(BadInput) as raised:
        converted(_ALWAYS)
    assert str(raised.value) == (
        "train.py:12: it can't be told on what condition the script sets up distributed training itself "
        "(`dist.init_process_group`); put this line under a plain `if args.distributed:`, with `args` from the command "
        "line; or take it out, and the DistributedDataParallel that needs it"
    )
    followed = converted("if args.distributed:\n    " + _ALWAYS)
    assert "if not args.distributed:\n    ddp.setup(beside_ddp=True)" in followed.new_text


def test_where_it_is_decided_too_late_nothing_is_converted_and_the_advice_works() -> None:
    with pytest.raises(BadInput) as raised:
        converted(_LATE)
    assert str(raised.value) == (
        "train.py:15: `dist.init_process_group` depends on `args.distributed`, which isn't known at any place before "
        "the models are wrapped; decide it in the script's main part, above all that wraps a model; best as a plain "
        "`if args.distributed:`, with `args` from the command line"
    )
    decided = '    args.distributed = bool(os.environ.get("SLURM_NTASKS"))\n'
    followed = converted(decided.strip() + "\n" + _LATE.replace(decided, ""))
    assert "if not args.distributed:\n    ddp.setup(beside_ddp=True)" in followed.new_text


_FULL = """
torch.manual_seed(0)
net = nn.Linear(4, 2)
if args.distributed:
    torch.cuda.set_device(args.local_rank)
    dist.init_process_group("nccl")
    data = prepare(torch.load("data.pt"))
    sampler = DistributedSampler(data)
    net = DDP(net.cuda(args.local_rank), device_ids=[args.local_rank])
else:
    sampler = None
    net = nn.DataParallel(net).cuda()
loader = DataLoader(data, 4, sampler=sampler)
for epoch in range(3):
    if args.distributed:
        sampler.set_epoch(epoch)
    for x, y in loader:
        x, y = x.cuda(args.local_rank), y.cuda(0, non_blocking=True)
        nn.functional.cross_entropy(net(x), y).backward()
    if not args.distributed or dist.get_rank() == 0:
        torch.save(net.state_dict(), "net.pt")
"""


def test_a_question_before_the_processes_start_is_noted() -> None:
    body = """
        def main():
            args = parser.parse_args()
            name = input("name? ")
            args.distributed = int(os.environ["WORLD_SIZE"]) > 1
            if args.distributed:
                dist.init_process_group("nccl")
            more = input("more? ")
            net = DDP(Net()) if args.distributed else nn.DataParallel(Net())
        main()
        """
    conversion = converted(body)
    assert 'name = input("name? ")' in conversion.new_text
    assert 'more = ddp.broadcast(ddp.main_only(input)("more? "))' in conversion.new_text
    assert [(note.rule, note.span.start.line) for note in conversion.notes] == [("DDP022", 14)]


def test_each_script_has_a_condition_of_its_own() -> None:
    script = (
        "import argparse\nimport torch.distributed as dist\nimport torch.nn as nn\nfrom nets import Net\n"
        "parser = argparse.ArgumentParser()\n"
        "def main():\n    args = parser.parse_args()\n    print(args)\n    if args.FLAG:\n"
        "        dist.init_process_group('nccl')\n    net = nn.DataParallel(Net())\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    files = {
        "first.py": script.replace("FLAG", "distributed"),
        "second.py": script.replace("FLAG", "spread"),
        "third.py": "import torch.nn as nn\nfrom nets import Net\nnet = nn.DataParallel(Net())\n",
        "nets.py": "import torch.nn as nn\nimport torch.distributed as dist\nclass Net(nn.Linear):\n    pass\n"
        "def join():\n    dist.init_process_group('nccl')\n",  # which nobody calls
    }
    done = convert_files(files, ["first.py", "second.py", "third.py"], Options(allow_ddp=True))
    assert "if not args.distributed:\n        ddp.setup(beside_ddp=True)" in done["first.py"].new_text
    assert "if not args.spread:\n        ddp.setup(beside_ddp=True)" in done["second.py"].new_text
    assert "\nddp.setup()\n" in done["third.py"].new_text


def test_folders_that_are_made_before_may_exist() -> None:
    result = converted(
        """
        class Config:
            if not os.path.isdir("weights"):
                os.makedirs("weights")
        def parse():
            args = parser.parse_args()
            if not os.path.isdir(args.out):
                os.makedirs(args.out)
            return args
        def main():
            args = parse()
            os.environ["CUDA_VISIBLE_DEVICES"] = args.gpus
            if args.distributed:
                mp.spawn(worker, nprocs=2, args=(args,))
            else:
                worker(0, args)
        def worker(gpu, args):
            if args.distributed:
                dist.init_process_group("nccl")
            net = DDP(Net()) if args.distributed else nn.DataParallel(Net())
            os.makedirs(args.out + "/log")
            print(Config)
        main()
        """
    )
    assert "os.makedirs(args.out, exist_ok=True)" in result.new_text
    assert 'os.makedirs("weights", exist_ok=True)' in result.new_text
    assert 'os.makedirs(args.out + "/log")' in result.new_text


def test_what_spawns_its_processes_is_started_as_before() -> None:
    with pytest.raises(BadInput, match="start that as before, as it spawns its processes by itself; --allow-ddp"):
        converted(f"{_FULL}torch.multiprocessing.spawn(work, nprocs=2)\n", allow=False)


def test_the_option_is_named_with_all_that_is_in_its_way() -> None:
    own = "class Own(nn.DataParallel):\n    def {}(self, *args):\n        pass\n"
    changed = own.format("gather") + own.replace("Own", "Other").format("scatter")
    late = "net = Own(nn.Linear(4, 2)) if args.one else Other(nn.Linear(4, 2))\n"
    with pytest.raises(BadInput) as raised:
        converted(f"{changed}{late}{_FULL}", allow=False)
    told = str(raised.value)
    assert "calls init_process_group; start that with torchrun; --allow-ddp converts what is beside it" in told
    first = (
        "once this is mended: line 12: `Own` changes how `DataParallel` works (`gather`); leave it out if it does what"
    )
    assert first in told
    assert "which gives back tensors for whole batches (no list with an item for each image)" in told
    assert "; and line 15: `Other` changes how `DataParallel` works (`scatter`); wrap the model in plain" in told
    with pytest.raises(BadInput, match=r"once this is mended: train\.py:12: it can't be told on what condition"):
        converted(_ALWAYS, allow=False)


def test_frameworks_are_refused_all_the_same() -> None:
    with pytest.raises(BadInput, match=r"imports Accelerate; it starts a process on each GPU by itself"):
        converted("from accelerate import Accelerator\nnet = nn.DataParallel(Net())\n")


def test_an_import_that_isn_t_used_is_no_ddp() -> None:
    assert "\nddp.setup()\n" in converted("net = nn.DataParallel(Net())\n").new_text


def test_files_written_before_it_can_be_told_are_named() -> None:
    script = (
        "import argparse, os, torch\nimport torch.distributed as dist\nimport torch.nn as nn\n"
        "parser = argparse.ArgumentParser()\nargs = parser.parse_args()\n\n"
        "class Run:\n    def __init__(self, d):\n        os.makedirs(d, exist_ok=True)\n        {}\n\n"
        "def main():\n    Run(args.d)\n    n = torch.cuda.device_count()\n    args.distributed = n > 1 and args.many\n"
        "    net = nn.Linear(4, 2)\n    if args.distributed:\n        dist.init_process_group('nccl')\n"
        "        net = nn.parallel.DistributedDataParallel(net)\n    else:\n        net = nn.DataParallel(net)\n\n"
        "main()\n"
    )
    for writing in ("os.system(f'cp a.py {d}/b.py')", "open(d + '/x', 'w')", "os.rename('a', d)"):
        conversion = convert_source(script.format(writing), "train.py", Options(allow_ddp=True))
        assert "every process writes here by itself" in " ".join(note.what for note in conversion.notes), writing
    assert not convert_source(script.format("pass"), "train.py", Options(allow_ddp=True)).notes


def test_one_gpu_that_is_given_is_one_process_beside_the_scripts_own_ddp() -> None:
    """As in ImageNet's example: `--gpu 3` wraps nothing."""
    result = converted(
        """
        if args.distributed:
            dist.init_process_group("nccl")
        net = Net()
        if args.distributed:
            net = DDP(net.cuda())
        elif args.gpu is not None:
            net = net.cuda(args.gpu)
        else:
            net = nn.DataParallel(net).cuda()
        """
    )
    assert "    ddp.setup(device_ids=None if args.gpu is None else [args.gpu], beside_ddp=True)\n" in result.new_text


def test_what_the_start_stands_under_is_not_said_once_more() -> None:
    script = "def main(args):\n    if args.nodes > 1:\n        dist.init_process_group('nccl')\n"
    script += "    elif args.parallel:\n        net = nn.DataParallel(nn.Linear(4, 2))\nmain(args)\n"
    given = "    if args.nodes <= 1:\n        ddp.setup(device_ids=None if args.parallel else [0], beside_ddp=True)\n"
    assert given in converted(script).new_text
