"""Scripts that set up distributed training themselves are refused; what only looks like it is not."""

from __future__ import annotations

import pytest

from dp2ddp.analysis.existing_ddp.refusals import is_converted, refuse
from dp2ddp.convert.pipeline import convert_files
from dp2ddp.errors import BadInput
from dp2ddp.rules import Options
from dp2ddp.source.program import parse


def _all(node: object) -> bool:
    """Whether a script comes to a node: to each."""
    return True


@pytest.mark.parametrize(
    ("source", "line", "what"),
    [
        ("import torch.distributed as dist\ndist.init_process_group('nccl')\n", 2, "calls init_process_group"),
        ("from torch.distributed import init_process_group\n\ninit_process_group()\n", 3, "calls init_process_group"),
        ("import torch.nn as nn\nx = nn.parallel.DistributedDataParallel(y)\n", 2, "uses DistributedDataParallel"),
        ("class A(nn.parallel.DistributedDataParallel): pass\n", 1, "uses DistributedDataParallel"),
        ("def f():\n    from accelerate import Accelerator\n", 2, "imports Accelerate"),
        ("import lightning as L\n", 1, "imports Lightning"),
        ("import pytorch_lightning.loggers\n", 1, "imports Lightning"),
        ("import horovod.torch as hvd\n", 1, "imports Horovod"),
        ("import deepspeed\n", 1, "imports DeepSpeed"),
        ("from transformers import AutoModel, Trainer\n", 1, "imports Hugging Face's `Trainer`"),
        ("import transformers\nt = transformers.Seq2SeqTrainer(m)\n", 2, "uses Hugging Face's `Trainer`"),
        ("import ray\nray.init()\n", 2, "uses Ray"),
        ("from trl import SFTTrainer\n", 1, "imports Hugging Face's TRL"),
        ("from fastai.vision.all import *\n", 1, "imports fastai"),
        ("from catalyst import dl\n", 1, "imports Catalyst"),
        ("import ignite.distributed as idist\n", 1, "imports Ignite's `distributed`"),
        ("from mmcv.runner import EpochBasedRunner\n", 1, "imports MMCV's runner"),
        ("from mmengine.runner import Runner\n", 1, "imports MMEngine's runner"),
        ("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n", 1, "imports FSDP"),
        (
            "from torch.nn.parallel import DistributedDataParallel as DDP\nisinstance(net, DDP)\nnet = DDP(net)\n",
            3,
            "uses DistributedDataParallel",
        ),
    ],
)
def test_refused(source: str, line: int, what: str) -> None:
    with pytest.raises(BadInput) as raised:
        refuse(parse(source, "train.py").files[0], _all)
    assert str(raised.value).startswith(f"train.py:{line}: sets up distributed training already: {what}; ")


@pytest.mark.parametrize(
    "source",
    [
        "import torch.distributed as dist\nif dist.is_initialized(): dist.barrier()\n",
        "x = isinstance(net, (nn.DataParallel, nn.parallel.DistributedDataParallel))\n",
        "from torch.nn.parallel import DataParallel, DistributedDataParallel as DDP\nx = isinstance(net, (DDP, A))\n",
        "from torch.nn.parallel import DataParallel, DistributedDataParallel\nnet = DataParallel(net)\n",
        "from .accelerate import run\nfrom lightning_rod import x\nimport mylightning\n",
        "from transformers import AutoModel, get_linear_schedule_with_warmup\n",
        "from mmcv.runner import load_checkpoint\nfrom catalyst.data import Sampler\nimport ignite.engine\n",
        "class Trainer: pass\nTrainer()\n",
        "# torch.distributed.init_process_group()\nx = 'DistributedDataParallel'\n",
    ],
)
def test_not_refused(source: str) -> None:
    refuse(parse(source, "train.py").files[0], _all)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import dp2ddp_runtime as ddp\n", True),
        ("def f():\n    from dp2ddp_runtime import setup\n", True),
        ("import dp2ddp_runtime.base.world\n", True),
        ("import dp2ddp_runtimes\nddp = 1\n", False),
    ],
)
def test_converted_scripts_are_known_by_their_import(source: str, expected: bool) -> None:
    assert is_converted(parse(source, "train.py").files[0]) is expected


def test_a_wrapper_that_another_file_takes_is_refused_where_it_is_imported() -> None:
    (file,) = parse("from torch.nn.parallel import DistributedDataParallel as DDP\n", "wrap.py").files
    with pytest.raises(BadInput, match=r"wrap\.py:1: .*imports DistributedDataParallel; "):
        refuse(file, _all, others=parse("from wrap import DDP\nnet = DDP(net)\n", "train.py").files)


def test_a_branch_beside_data_parallel_may_be_allowed() -> None:
    (file,) = parse("import torch.distributed as dist\ndist.init_process_group('nccl')\n", "train.py").files
    with pytest.raises(BadInput, match="dp2ddp converts scripts"):
        refuse(file, _all)
    with pytest.raises(BadInput, match="--allow-ddp converts the DataParallel branch"):
        refuse(file, _all, others=parse("net = nn.DataParallel(net)\n", "net.py").files)
    refuse(file, _all, allow_ddp=True)


@pytest.mark.parametrize("used", [False, True])
def test_what_no_script_comes_to_refuses_nothing(used: bool) -> None:
    """Helpers that were copied along with a function that is used."""
    call = "init()\n" if used else ""
    files = {
        "train.py": "import torch.nn as nn\nfrom utils import init, Meter\n"
        f"{call}net = nn.DataParallel(nn.Linear(4, 2))\nMeter()\n",
        "utils.py": "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n\n"
        "class Meter:\n    pass\n\ndef init():\n    torch.distributed.init_process_group('nccl')\n\n"
        "def wrap(net):\n    return DDP(net)\n",
    }
    if used:
        with pytest.raises(
            BadInput, match=r"utils\.py:8: sets up distributed training already: calls init_process_group"
        ):
            convert_files(files, ["train.py"], Options())
    else:
        done = convert_files(files, ["train.py"], Options(allow_ddp=True))
        assert done["train.py"].new_text == convert_files(files, ["train.py"], Options())["train.py"].new_text
        assert "\nddp.setup()\nnet = ddp.wrap_model(" in done["train.py"].new_text
        assert done["utils.py"].new_text == files["utils.py"]


def test_what_asks_whether_a_process_group_is_joined_is_no_condition_of_it() -> None:
    files = {
        "util.py": "import torch.distributed as dist\n\ndef init():\n    if dist.is_initialized():\n"
        "        return\n    dist.init_process_group('nccl')\n",
        "train.py": "import argparse\nimport torch.nn as nn\nfrom util import init\n"
        "args = argparse.ArgumentParser().parse_args()\nnet = nn.Linear(4, 2)\nif args.distributed:\n    init()\n"
        "    net = nn.parallel.DistributedDataParallel(net)\nelse:\n    net = nn.DataParallel(net)\n",
    }
    new = convert_files(files, ["train.py"], Options(allow_ddp=True))["train.py"].new_text
    assert "if not args.distributed:\n    ddp.setup(beside_ddp=True)\n" in new
