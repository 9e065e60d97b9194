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

    SETUP
    device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    loader = LOADER(DataLoader(TensorDataset(torch.rand(10, 3), torch.zeros(10, dtype=torch.int64)), 4, shuffle=True))
    net = nn.Linear(3, 2)
    if BEFORE:
        net.to(device)
    net = WRAP(net)
    if not BEFORE:
        net.to(device)
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
@pytest.mark.parametrize("before", [True, False])
def test_training_on_mps_goes_on_as_one_process(warm: Warm, tmp_path: Path, before: bool) -> None:
    """Whether the model moves ahead of the wrap or behind it; and as the original, which prints the same."""
    body = TRAINING.replace("BEFORE", str(before))
    original = body.replace("SETUP", "").replace("LOADER", "").replace("WRAP", "nn.DataParallel")
    setup = "ddp.setup(); assert ddp.world_size() == 1"
    converted = body.replace("SETUP", setup).replace("LOADER", "ddp.shard_loader").replace("WRAP", "ddp.wrap_model")
    alone = {"nproc": None, "env": {"DP2DDP_DEVICE": "", "CUDA_VISIBLE_DEVICES": ""}}
    wanted, done = (
        warm.start(write(tmp_path, text, name), **alone)
        for text, name in ((original, "train.py"), (converted, "train_ddp.py"))
    )
    assert (wanted.returncode, done.returncode) == (0, 0), wanted.stderr + done.stderr
    steps = [f"meta ({rows}, 2) meta" for rows in (4, 4, 2)]
    assert wanted.stdout.splitlines() == done.stdout.splitlines() == [*steps, "['meta', 'meta']"]
