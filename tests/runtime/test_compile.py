"""`torch.compile` with an empty cache, around the wrapped model and inside: no rank waits for another one's disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from starts import Warm, write

BODY = """
ddp.setup()
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
model = {model}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = torch.nn.functional.cross_entropy(model(torch.randn(10, 4)), torch.randint(0, 3, (10,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{{loss.item():.5f}}", ddp.world_size())
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__ < "2.4", reason="older compilers know fewer Pythons")
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")
@pytest.mark.parametrize("where", ["torch.compile(ddp.wrap_model(net))", "ddp.wrap_model(torch.compile(net))"])
def test_training_with_an_empty_cache(warm: Warm, tmp_path: Path, where: str) -> None:
    plain = warm.start(write(tmp_path, BODY.format(model="ddp.wrap_model(net)"), "plain.py"), forked=True)
    assert plain.returncode == 0, plain.stderr
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    # Two ranks that compile take 15 s of a processor, and with other tests beside them minutes.
    with warm.started(write(tmp_path, BODY.format(model=where)), env=env, forked=True) as started:
        done = started.wait(timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert len(plain.stdout.split()) == 6
