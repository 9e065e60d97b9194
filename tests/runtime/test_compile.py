"""`torch.compile` with an empty cache, around the wrapped model: no rank waits for another one's disk."""

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
def test_training_with_an_empty_cache(warm: Warm, tmp_path: Path) -> None:
    plain = warm.start(write(tmp_path, BODY.format(model="ddp.wrap_model(net)"), "plain.py"), forked=True)
    assert plain.returncode == 0, plain.stderr
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    compiled = write(tmp_path, BODY.format(model="torch.compile(ddp.wrap_model(net))"))
    done = warm.start(compiled, env=env, forked=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert len(plain.stdout.split()) == 6


def test_a_cache_s_own_folder_is_each_rank_s(warm: Warm, tmp_path: Path) -> None:
    """Rank 0 makes it again while it holds a lock; the other ranks come to that lock, and not to the folder."""
    body = """
    import os, time
    from filelock import FileLock
    ddp.setup()
    ddp.wrap_model(torch.nn.Linear(1, 1))
    cache = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    time.sleep(0.5 * ddp.rank())
    with FileLock(os.path.expanduser("~/.cache/torch/lock")):
        for folder in (cache, os.path.expanduser("~/.cache/torch/kernels")):
            os.makedirs(folder, exist_ok=True)
        time.sleep(1.5 * (1 - ddp.rank()))
    os.environ["TORCH_HOME"] = os.path.expanduser(f"~/models{ddp.rank()}")  # which a script may say late
    os.makedirs(os.environ["TORCH_HOME"])
    print(ddp.gather([os.path.isdir(each) for each in (folder, os.environ["TORCH_HOME"])]))
    """
    (tmp_path / "cache").mkdir()
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    done = warm.start(write(tmp_path, body), env=env, forked=True)
    assert (done.stdout, done.returncode) == ("[[True, True], [True, True]]\n", 0), done.stderr
