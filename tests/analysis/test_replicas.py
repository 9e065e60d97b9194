"""What reaches for DataParallel's replicas: hand-written copies of it, and packages that patch it."""

from __future__ import annotations

import textwrap

import pytest

from dp2ddp.convert.pipeline import Conversion, convert_files, convert_source
from dp2ddp.rules import Options

_HEAD = """\
import torch
import torch.nn as nn
from torch.nn.parallel import DataParallel, parallel_apply
from torch.nn.parallel.replicate import replicate
class Copies(nn.Module):
    def __init__(self, module, sizes=None):
        super().__init__()
        self.module = module
    def forward(self, x):
        replicas = self.replicate(self.module, [0, 1])
        return torch.cat(parallel_apply(replicas, x.chunk(2)))
    def replicate(self, module, device_ids):
        return replicate(module, device_ids)
"""


def converted(body: str, *, sync_bn: bool = False) -> Conversion:
    return convert_source(_HEAD + textwrap.dedent(body).lstrip("\n"), "train.py", Options(sync_bn=sync_bn))


RUNS = {
    "derived from": "class More(Copies):\n    pass\nnet = More(nn.Linear(4, 2))\n",
    "behind the wrap's branch": (
        "net = nn.Linear(4, 2)\nif torch.cuda.device_count() > 1:\n    net = nn.DataParallel(net)\nnet = Copies(net)\n"
    ),
    "in another branch": (
        "net = nn.Linear(4, 2)\nif MODE:\n    net = nn.DataParallel(net)\nelse:\n    net = Copies(net)\n"
    ),
    "in a function": (
        "def run(net, x):\n    return torch.cat(parallel_apply(nn.parallel.replicate(net, [0, 1]), x.chunk(2)))\n"
        "run(nn.DataParallel(nn.Linear(4, 2)).module, torch.ones(4, 4))\n"
    ),
}


@pytest.mark.parametrize("shape", RUNS)
def test_a_copy_of_data_parallel_that_runs_is_refused(shape: str) -> None:
    conversion = converted(RUNS[shape])
    assert conversion.refused
    assert not conversion.changed
    assert {note.rule for note in conversion.notes} == {"DDP016"}
    assert "copies a model onto several GPUs by itself (`" in conversion.notes[0].what
    assert ", line 1" in conversion.notes[0].what


@pytest.mark.parametrize(
    "call",
    [
        "torch.cuda.comm.scatter(torch.ones(4, 4), [0, 1])",
        "nn.parallel.replicate(net.module, [0, 1])",
        "parallel_apply([net.module], [torch.ones(4, 4)])",
    ],
)
def test_a_call_for_several_devices_outside_of_functions_is_refused(call: str) -> None:
    conversion = converted(f"net = nn.DataParallel(nn.Linear(4, 2))\nfound = {call}\n")
    assert conversion.refused
    assert {note.rule for note in conversion.notes} == {"DDP016"}
    assert "works on several GPUs, which every process would do" in conversion.notes[0].what


def test_a_copy_that_nothing_uses_is_left_alone() -> None:
    files = {
        "train.py": "import torch.nn as nn\nimport copies\nnet = nn.DataParallel(nn.Linear(4, 2))\n"
        "print(isinstance(net, copies.Copies))\n",
        "copies.py": f"{_HEAD}",
    }
    done = convert_files(files, ["train.py"], Options())
    assert "net = ddp.wrap_model(nn.Linear(4, 2)" in done["train.py"].new_text
    assert not any(each.refused for each in done.values())


def test_steps_of_the_forward_may_not_be_exchanged() -> None:
    conversion = converted("net = nn.DataParallel(nn.Linear(4, 2))\nnet.scatter = lambda *given: given\n")
    assert conversion.refused
    (note,) = conversion.notes
    assert note.what.startswith("`net.scatter`, a step of DataParallel's forward, is exchanged; nothing was converted")


_SYNC = {
    "train.py": """\
import torch
import torch.nn as nn
from nets.sync_batchnorm import SynchronizedBatchNorm1d, patch_replication_callback

net = nn.Sequential(nn.Linear(4, 2), SynchronizedBatchNorm1d(2))
net = nn.DataParallel(net)
patch_replication_callback(net)
""",
    "nets/sync_batchnorm/__init__.py": """\
from .batchnorm import SynchronizedBatchNorm1d
from .replicate import DataParallelWithCallback, patch_replication_callback
""",
    "nets/sync_batchnorm/batchnorm.py": """\
import torch
from torch.nn.modules.batchnorm import _BatchNorm
from .replicate import DataParallelWithCallback

class SynchronizedBatchNorm1d(_BatchNorm):
    def __data_parallel_replicate__(self, context, copy_id):
        self.context = context

def convert_model(module):
    if isinstance(module, torch.nn.DataParallel):
        return DataParallelWithCallback(convert_model(module.module), device_ids=module.device_ids)
    return module
""",
    "nets/sync_batchnorm/replicate.py": """\
import functools
from torch.nn.parallel.data_parallel import DataParallel

def tell(modules):
    pass

class DataParallelWithCallback(DataParallel):
    def replicate(self, module, device_ids):
        modules = super(DataParallelWithCallback, self).replicate(module, device_ids)
        tell(modules)
        return modules

def patch_replication_callback(data_parallel):
    assert isinstance(data_parallel, DataParallel)
    old_replicate = data_parallel.replicate

    @functools.wraps(old_replicate)
    def new_replicate(module, device_ids):
        modules = old_replicate(module, device_ids)
        tell(modules)
        return modules

    data_parallel.replicate = new_replicate
""",
}


def test_a_package_in_the_program_that_synchronises_batchnorm_meets_the_runtime() -> None:
    done = convert_files(_SYNC, ["train.py"], Options())
    assert not any(each.notes for each in done.values() if each.refused)
    assert "net = ddp.wrap_model(net)\npatch_replication_callback(net)\n" in done["train.py"].new_text
    replicate = done["nets/sync_batchnorm/replicate.py"].new_text
    assert "class DataParallelWithCallback(ddp.WrappedModel):" in replicate
    assert "assert isinstance(data_parallel, ddp.WrappedModel)" in replicate
    done = convert_files(_SYNC, ["train.py"], Options(sync_bn=True))
    assert "net = ddp.wrap_model(net, sync_bn=True)\n" in done["train.py"].new_text


def test_one_that_is_installed_needs_the_option() -> None:
    files = {"train.py": _SYNC["train.py"]}
    done = convert_files(files, ["train.py"], Options())
    (note,) = [note for each in done.values() for note in each.notes]
    assert note.span.start.line == 7
    assert note.what.startswith("`patch_replication_callback(net)` synchronises BatchNorm over DataParallel's")
    assert note.todo.startswith("convert with --sync-bn")
    done = convert_files(files, ["train.py"], Options(sync_bn=True))
    assert "net = ddp.wrap_model(net, sync_bn=True)\n" in done["train.py"].new_text
    assert "patch_replication_callback(net)" not in done["train.py"].new_text


def test_a_wrapper_of_an_installed_package_is_refused() -> None:
    called = _SYNC["train.py"].replace("patch_replication_callback(net)\n", "")
    called = called.replace("nn.DataParallel(net)", "DataParallelWithCallback(net, [0])")
    files = {"train.py": called.replace("patch_replication_callback", "DataParallelWithCallback")}
    (note,) = [note for each in convert_files(files, ["train.py"], Options()).values() for note in each.notes]
    assert "plain `nn.DataParallel` and --sync-bn give it over processes" in note.what


_ABN = """
from queue import Queue
class Synced(nn.Module):
    def __init__(self, size, devices=(0, 1)):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.devices, self.master = list(devices), Queue(len(devices))
    def forward(self, x):
        return Sum.apply(x, self.weight, self.master, x.get_device() == self.devices[0])
class Sum(torch.autograd.Function):
    pass
"""


@pytest.mark.parametrize("sync_bn", [True, False])
def test_replicas_that_meet_by_queues_are_refused(sync_bn: bool) -> None:
    conversion = converted(_ABN + "net = nn.DataParallel(nn.Sequential(nn.Linear(4, 2), Synced(2)))\n", sync_bn=sync_bn)
    assert conversion.refused
    assert not conversion.changed
    assert [note.rule for note in conversion.notes] == ["DDP016"]
    assert conversion.notes[0].what.startswith("`Synced`, line 15, synchronises DataParallel's replicas through queues")


@pytest.mark.parametrize(
    "shape",
    [
        "class Net(nn.Module):\n    def forward(self, x):\n        return x.get_device(), len(x) == 0\n"
        "net = nn.DataParallel(Net())\n",
        "def place(x):\n    return x.get_device() == 0\nnet = nn.DataParallel(nn.Linear(4, 2))\n",
        _ABN + "net = nn.DataParallel(nn.Linear(4, 2))\n",  # nobody uses it
        _ABN.replace("x.get_device() == self.devices[0]", "True") + "net = nn.DataParallel(Synced(2))\n",
    ],
)
def test_other_modules_are_not(shape: str) -> None:
    assert not converted(shape).refused


@pytest.mark.parametrize(
    "asked", ["x.get_device() == 0", "x.get_device() in self.device_ids", "0 != self.w.get_device()"]
)
def test_a_module_that_asks_on_which_gpu_it_is_is_refused(asked: str) -> None:
    layer = f"class Net(nn.Module):\n    def forward(self, x):\n        return x if {asked} else -x\n"
    done = converted(f"{layer}net = nn.DataParallel(nn.Sequential(Net()))\n")
    assert done.refused
    assert [note.what.split(" asks")[0] for note in done.notes] == [f"`{asked}`"]


_PATCHED = """
import argparse
from sync_batchnorm import SynchronizedBatchNorm1d, patch_replication_callback
args = argparse.ArgumentParser().parse_args()
net = nn.DataParallel(nn.Sequential(nn.Linear(4, 2), SynchronizedBatchNorm1d(2)))
"""


@pytest.mark.parametrize(
    "patch",
    [
        "if args.sync:\n    patch_replication_callback(net)\n",
        "if args.sync:\n    patch_replication_callback(net)\nelse:\n    print('plain')\n",
        "if args.plain:\n    print('plain')\nelse:\n    patch_replication_callback(net)\n",
    ],
)
def test_batch_norm_is_synchronised_on_each_run_whatever_guards_the_patch(patch: str) -> None:
    conversion = converted(_PATCHED + patch, sync_bn=True)
    assert ", sync_bn=True)" in conversion.new_text
    assert "patch_replication_callback(net)" not in conversion.new_text
    assert [note.rule for note in conversion.notes if "on each run" in note.what] == ["DDP014"]


def test_a_class_below_one_that_derives_from_data_parallel_may_change_it() -> None:
    script = (
        "import torch.nn as nn\nclass Base(nn.DataParallel):\n    pass\nclass Own(Base):\n"
        "    def scatter(self, inputs, kwargs, device_ids):\n        return inputs, kwargs\nnet = {}(nn.Linear(4, 2))\n"
    )
    done = convert_source(script.format("Own"), "train.py", Options())
    assert [note.span.start.line for note in done.notes if done.refused] == [4]
    assert "class Base(ddp.WrappedModel):" in convert_source(script.format("Base"), "train.py", Options()).new_text


def test_functions_that_are_applied_in_parallel_become_a_module_first() -> None:
    apart = (
        "from functools import partial\nfrom torch.nn.parallel import scatter, parallel_apply, gather\n"
        "def spread(f, x, params, ids):\n    replicas = [partial(f, params=p) for p in params]\n"
        "    return gather(parallel_apply(replicas, scatter([x], ids)), ids[0])\n"
        "y = spread(f, x, params, [0, 1])\n"
    )
    done = convert_source(apart, "train.py", Options())
    assert [note.todo for note in done.notes] == [
        "write the network as an `nn.Module`, and wrap it in plain `nn.DataParallel`, then convert again"
    ]


def test_what_is_refused_names_where_the_class_is_taken() -> None:
    own = "class Own(nn.DataParallel):\n    def scatter(self, x, kwargs, ids):\n        return [x], [kwargs]\n"
    taking = (
        "import sys\nimport nets\nimport torch.nn as nn\nNet = getattr(nets, sys.argv[1])\nnet = Net(nn.Linear(4, 2))\n"
    )
    files = {"train.py": taking, "nets.py": f"import torch.nn as nn\n{own}def wrap(net):\n    return Own(net)\n"}
    (note,) = convert_files(files, ["train.py"], Options())["nets.py"].notes
    assert note.todo.startswith("wrap the model in plain `nn.DataParallel` (nets.py:6)")


def test_a_wrapped_loss_that_takes_a_list_is_to_be_called_itself() -> None:
    own = "class DataParallelCriterion(nn.DataParallel):\n    def forward(self, inputs, *targets):\n        pass\n"
    (note,) = converted(
        f"{own}net = nn.DataParallel(nn.Linear(4, 2))\nloss = DataParallelCriterion(nn.MSELoss())\n"
    ).notes
    assert note.todo.startswith("call the loss itself (line ")
