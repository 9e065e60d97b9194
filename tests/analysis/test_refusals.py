"""Scripts that set up distributed training themselves are refused; what only looks like it is not."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_files, convert_source
from dp2ddp.rules import Options

AS_DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
WRAP = "import torch.nn\nwrapped = torch.nn.DataParallel(net)\n"


@pytest.mark.parametrize(
    ("source", "line", "what"),
    [
        ("import torch.distributed as dist\ndist.init_process_group('nccl')\n", 2, "calls init_process_group"),
        ("from torch.distributed import init_process_group\n\ninit_process_group()\n", 3, "calls init_process_group"),
        ("import torch.nn as nn\nx = nn.parallel.DistributedDataParallel(y)\n", 2, "calls DistributedDataParallel"),
        ("def f():\n    from accelerate import Accelerator\n", 2, "imports Accelerate"),
        ("import lightning as L\n", 1, "imports Lightning"),
        ("import pytorch_lightning.loggers\n", 1, "imports Lightning"),
        ("import horovod.torch as hvd\nhvd.init()\n", 2, "uses Horovod"),
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
        (f"{AS_DDP}isinstance(net, DDP)\nnet = DDP(net)\n", 3, "calls DistributedDataParallel"),
    ],
)
def test_refused(source: str, line: int, what: str) -> None:
    done = convert_source(source + WRAP, "train.py", Options())
    assert done.refused
    assert [each.span.start.line for each in done.notes] == [line]
    assert done.notes[0].what == f"sets up distributed training already: {what}; nothing was converted"
    assert not convert_source(source, "train.py", Options()).notes, "there is nothing to convert"


@pytest.mark.parametrize(
    "source",
    [
        "import torch.distributed as dist\nif dist.is_initialized(): dist.barrier()\n",
        "x = isinstance(net, (nn.DataParallel, nn.parallel.DistributedDataParallel))\n",
        "from torch.nn.parallel import DataParallel, DistributedDataParallel as DDP\nx = isinstance(net, (DDP, A))\n",
        "from torch.nn.parallel import DataParallel, DistributedDataParallel\nnet = DataParallel(net)\n",
        "from .accelerate import run\nfrom lightning_rod import x\nimport mylightning\n",
        "from transformers import AutoModel, get_linear_schedule_with_warmup\n",
        "from mmcv.runner import load_checkpoint\nfrom catalyst.data import Sampler\nimport horovod.torch\n",
        "class Trainer: pass\nTrainer()\n",
        "# torch.distributed.init_process_group()\nx = 'DistributedDataParallel'\n",
    ],
)
def test_not_refused(source: str) -> None:
    assert convert_source(source + WRAP, "train.py", Options()).changed


def test_what_another_file_sets_up_is_refused_whoever_calls_it() -> None:
    by_another = {"train.py": f"from utils import hvd\nhvd.init()\n{WRAP}", "utils.py": "import horovod.torch as hvd"}
    assert convert_files(by_another, ["train.py"], Options())["train.py"].refused
    files = {
        "train.py": "import torch.nn as nn\nfrom utils import Meter\nnet = nn.DataParallel(nn.Linear(4, 2))\nMeter()\n",
        "utils.py": "import torch\nclass Meter:\n    pass\ndef init():\n    torch.distributed.init_process_group()\n",
    }
    (note,) = convert_files(files, ["train.py"], Options())["utils.py"].notes
    assert (note.span.start.line, "; --allow-ddp converts the rest" in note.todo) == (5, True)
    done = convert_files(files, ["train.py"], Options(allow_ddp=True))
    assert "ddp.setup(beside_ddp=True)\n\nfrom utils import Meter\nnet = ddp.wrap_model(" in done["train.py"].new_text
    assert not done["utils.py"].changed
