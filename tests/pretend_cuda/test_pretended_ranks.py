"""Which GPU a rank sees first: its own one, whoever starts it and whatever the script sets the variable to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = """\
import os
with open("starts", "a") as file:
    file.write(os.environ.get("RANK", "-"))
from pretend_cuda import install, is_fixed
install(4)
import threading, torch, json
BEFORE
import dp2ddp_runtime as ddp
from dp2ddp_runtime import gpus
gpus.is_fixed = is_fixed
ddp.setup()
AFTER
ddp.wrap_model(torch.nn.Linear(2, 2), device_ids=IDS)
in_thread = []
thread = threading.Thread(target=lambda: in_thread.append(str(torch.zeros(1).cuda(IDS[0]).device)))
thread.start()
thread.join()
moved = str(torch.zeros(1).cuda(IDS[0]).device), *in_thread
mine = os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count()
print(json.dumps([ddp.gather([*mine, sorted(set(moved))]), torch.distributed.is_initialized()]))
"""
ASK = "assert torch.cuda.is_available()"
CHOOSE = 'os.environ["CUDA_VISIBLE_DEVICES"] = "3,1,2"'
SEEN = 'print(torch.cuda.is_available(), ddp.world_size(), os.environ.get("CUDA_VISIBLE_DEVICES"))'
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def started(folder: Path, launcher: list[str], ids: Any, before: str = "", after: str = "", **env: str) -> Any:
    """What the ranks of a script see."""
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("BEFORE", before).replace("AFTER", after).replace("IDS", repr(ids)))
    return run(folder, launcher, script, **env)


def run(folder: Path, launcher: list[str], script: Path, **env: str) -> Any:
    """A script, started with its output kept."""
    kept = {key: value for key, value in os.environ.items() if key not in ("DP2DDP_DEVICE", "CUDA_VISIBLE_DEVICES")}
    env = {**kept, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", **env}
    env["PYTHONPATH"] = os.pathsep.join([*filter(None, sys.path)])
    command = [sys.executable, *launcher, str(script)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, cwd=folder)


@pytest.mark.parametrize(
    ("launcher", "ids", "before", "after", "env", "seen", "starts"),
    [
        ([], [0, 1], CHOOSE, ASK, {}, ["3,1,2", "1,3,2"], "--"),  # the script sets it behind its imports
        ([], [1, 2], "", ASK, {"CUDA_VISIBLE_DEVICES": "0,2,3"}, ["0,2,3", "0,3,2"], "--"),
        (TORCHRUN, [0, 1], CHOOSE, ASK, {}, ["3,1,2", "1,3,2"], "01"),
        (TORCHRUN, [0, 3], ASK, "", {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, ["0,1,2,3", "3,1,2,0"], "011"),  # begins anew
    ],
)
def test_each_rank_sees_its_gpu_first(
    launcher: list[str],
    ids: list[int],
    before: str,
    after: str,
    env: dict[str, str],
    seen: list[str],
    starts: str,
    tmp_path: Path,
) -> None:
    done = started(tmp_path, launcher, ids, before, after, **env)
    assert done.returncode == 0, done.stderr
    device = f"cuda:{ids[0]}"
    count = len(seen[0].split(","))
    assert json.loads(done.stdout) == [[[each, count, [device]] for each in seen], False]
    assert "".join(sorted((tmp_path / "starts").read_text())) == starts


def test_cuda_that_nvml_alone_sees_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    """A driver that is too old, for instance: the original trains on the CPU, in one process."""
    script = tmp_path / "train.py"
    top = SCRIPT.split("BEFORE")[0]
    broken = "torch._C._cuda_getDeviceCount = lambda: 0\nimport dp2ddp_runtime as ddp\nddp.setup()\n"
    script.write_text(f"{top}{broken}ddp.wrap_model(torch.nn.Linear(2, 2))\n{SEEN}\n")
    done = run(tmp_path, [], script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False 1 None\n"


def test_cuda_that_is_used_too_early_is_an_error(tmp_path: Path) -> None:
    """Where no rank can be shown another order: the script sets the variable itself, and uses CUDA ahead of `setup`."""
    done = started(tmp_path, [], [0, 1], f"{CHOOSE}; {ASK}")
    assert done.returncode == 1
    assert "CUDA was used with CUDA_VISIBLE_DEVICES=3,1,2 before ddp.setup()" in done.stderr
    assert "set PYTORCH_NVML_BASED_CUDA_CHECK=1" in done.stderr
    assert "Traceback" not in done.stderr
