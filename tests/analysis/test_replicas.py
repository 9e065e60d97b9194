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
        "class Net(nn.Module):\n    def forward(self, x):\n        on = x.get_device()\n        if on not in self.w:\n"
        "            self.w[on] = f(x)\n        return x + self.w[on]\nnet = nn.DataParallel(Net())\n",  # a cache
        "def place(x):\n    return x.get_device() == 0\nnet = nn.DataParallel(nn.Linear(4, 2))\n",
        _ABN + "net = nn.DataParallel(nn.Linear(4, 2))\n",  # nobody uses it
        _ABN.replace("x.get_device() == self.devices[0]", "True") + "net = nn.DataParallel(Synced(2))\n",
    ],
)
def test_other_modules_are_not(shape: str) -> None:
    assert not converted(shape).refused


def test_a_module_that_computes_with_its_gpu_s_index_is_refused() -> None:
    """As Shift-Net's layers take their replica's masks."""
    layer = """
class Net(nn.Module):
    def take(self, count):
        own = torch.cuda.current_device()
        return self.mask[own * count : (own + 1) * count]
"""
    done = converted(f"import torch\n{layer}net = nn.DataParallel(nn.Sequential(Net()))\n")
    assert [note.what.split(" asks")[0] for note in done.notes] == ["`own * count`", "`own + 1`"]
    named = layer.replace("[own * count : (own + 1) * count]", '.to("cuda:%d" % own).cuda(own).to(f"cuda:{own}")')
    assert not converted(f"import torch\n{named}net = nn.DataParallel(nn.Sequential(Net()))\n").refused


@pytest.mark.parametrize(
    "asked",
    [
        "x.get_device() == 0",
        "x.get_device() in self.device_ids",
        "0 != self.w.get_device()",
        "torch.cuda.current_device() * len(x)",
        "x.get_device() + 1",
        "self.scales[x.get_device()]",
        "x[torch.cuda.current_device() :]",
    ],
)
def test_a_module_that_asks_on_which_gpu_it_is_is_refused(asked: str) -> None:
    body = f"self.w[0] = x\n        return x if {asked} else -x"
    layer = f"import torch\nclass Net(nn.Module):\n    def forward(self, x):\n        {body}\n"
    done = converted(f"{layer}net = nn.DataParallel(nn.Sequential(Net()))\n")
    assert done.refused
    assert [note.what.split(" asks")[0] for note in done.notes] == [f"`{asked}`"]
