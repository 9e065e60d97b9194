"""Scripts that can also set up DistributedDataParallel themselves: refused, or converted with --allow-ddp."""

from __future__ import annotations

import textwrap

from dp2ddp.convert.pipeline import Conversion, convert_files, convert_source
from dp2ddp.rules import Options

_HEAD = """\
import argparse
import os
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
parser = argparse.ArgumentParser()
args = parser.parse_args()
"""


def converted(body: str, *, allow: bool = True) -> Conversion:
    return convert_source(_HEAD + textwrap.dedent(body).lstrip("\n"), "train.py", Options(allow_ddp=allow))


_OWN = """\
    torch.cuda.set_device(args.local_rank)
    dist.init_process_group("nccl")
    sampler = DistributedSampler(data)
    torch.save(data, "own.pt")
    net = DDP(net.cuda(args.local_rank), device_ids=[args.local_rank])
"""


_FULL = f"""
net = nn.Linear(4, 2)
if args.distributed:
{_OWN}else:
    sampler = None
    net = nn.DataParallel(net).cuda()
loader = DataLoader(data, 4, sampler=sampler)
for epoch in range(3):
    if args.distributed:
        sampler.set_epoch(epoch)
    for x, y in loader:
        nn.functional.cross_entropy(net(x.cuda(args.local_rank)), y).backward()
    if not args.distributed or dist.get_rank() == 0:
        torch.save(net.state_dict(), "net.pt")
"""


def test_the_data_parallel_branch_is_converted_and_the_other_stays_to_the_byte() -> None:
    new = converted(_FULL).new_text
    assert "import dp2ddp_runtime as ddp\n\nddp.setup(beside_ddp=True)\nparser = " in new
    assert f"if args.distributed:\n{_OWN}else:\n" in new
    assert "    net = ddp.wrap_model(net).cuda()\n" in new
    assert "\nloader = ddp.shard_loader(DataLoader(data, 4, sampler=sampler))\n" in new
    assert '        ddp.save(net.state_dict(), "net.pt")\n' in new
    assert new.count("ddp.") == 4


def test_scripts_that_share_a_file_are_converted_together() -> None:
    script = "import torch.nn as nn\nfrom nets import Net\nnet = nn.DataParallel(Net())\n"
    nets = (
        "import torch.distributed as dist\nimport torch.nn as nn\nclass Net(nn.Linear):\n    pass\n"
        "def join():\n    dist.init_process_group('nccl')\n"
    )
    files = {"first.py": script, "second.py": script, "nets.py": nets}
    done = convert_files(files, ["first.py", "second.py"], Options(allow_ddp=True))
    assert done["first.py"].new_text == done["second.py"].new_text
    assert not done["nets.py"].changed


def test_the_option_is_named_beside_all_that_is_in_its_way() -> None:
    own = "class Own(nn.DataParallel):\n    def {}(self, *args):\n        pass\n"
    changed = own.format("gather") + own.replace("Own", "Other").format("scatter")
    late = "net = Own(nn.Linear(4, 2)) if args.one else Other(nn.Linear(4, 2))\n"
    done = converted(f"{changed}{late}{_FULL}", allow=False)
    assert (done.changed, done.refused) == (False, True)
    told = [f"{note.span.start.line}: {note.what}; {note.todo}" for note in done.notes]
    assert len(told) == 3
    assert told[0].startswith("11: `Own` changes how `DataParallel` works (`gather`); nothing was converted; leave")
    assert "which gives back tensors for whole batches (no list with an item for each image)" in told[0]
    assert told[1].startswith("14: `Other` changes how `DataParallel` works (`scatter`); nothing was converted; wrap")
    assert "calls init_process_group; nothing was converted; start that as before; --allow-ddp" in told[2]
