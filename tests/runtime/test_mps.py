"""A Mac's GPU, which `nn.DataParallel` leaves to the script: one process, and the model stays where it was put."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from starts import Warm, write

TRAINING = """
    import torch._dynamo  # which asks torch.accelerator for more than is told below
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    torch.backends.mps.is_available = lambda: True
    told = {"is_available": True, "current_accelerator": torch.device("mps"), "device_count": 1}
    for name, value in told.items():
        setattr(torch.accelerator, name, lambda *_, value=value, **__: value)
    # Where there is no MPS, the meta device stands in for it: it isn't the CPU, either, and doesn't mix with it.
    to = torch.Tensor.to
    torch.Tensor.to = lambda tensor, device, *more: to(tensor, "meta" if str(device) == "mps" else device, *more)

    ddp.setup()
    assert ddp.world_size() == 1
    device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    loader = ddp.shard_loader(DataLoader(TensorDataset(torch.rand(10, 3), torch.zeros(10).long()), 4, shuffle=True))
    net = ddp.wrap_model(nn.Linear(3, 2)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        out = net(x)
        nn.functional.cross_entropy(out, y).backward()
        optimizer.step()
        print(out.device, tuple(out.shape), net.module.weight.grad.device)
    print([str(each.device) for each in net.parameters()])
    """


@pytest.mark.skipif(torch.__version__ < "2.6", reason="there is no torch.accelerator")
def test_training_on_mps_goes_on_as_one_process(warm: Warm, tmp_path: Path) -> None:
    alone = {"nproc": None, "env": {"DP2DDP_DEVICE": "", "CUDA_VISIBLE_DEVICES": ""}}
    done = warm.start(write(tmp_path, TRAINING), **alone)
    assert done.returncode == 0, done.stderr
    steps = [f"meta ({rows}, 2) meta" for rows in (4, 4, 2)]
    assert done.stdout.splitlines() == [*steps, "['meta', 'meta']"]
