"""Which GPU a rank sees first: its own one, whoever starts it and whatever the script sets the variable to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starts import TORCHRUN, Done, Warm

SCRIPT = """\
import os
with open("starts", "a") as file:
    file.write(os.environ.get("RANK", "-"))
from pretend_cuda import install, is_fixed
install(4)
import sys, threading, torch, json
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


def started(
    warm: Warm, folder: Path, launcher: tuple[str, ...], ids: Any, before: str = "", after: str = "", **env: str
) -> Done:
    """A script on ranks that have devices."""
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("BEFORE", before).replace("AFTER", after).replace("IDS", repr(ids)))
    return warm.start(*launcher, script, nproc=None, ranks=2, cwd=folder, env={"DP2DDP_DEVICE": "", **env}, forked=True)


@pytest.mark.parametrize(
    ("launcher", "ids", "before", "after", "env", "seen", "starts"),
    [
        ((), [0, 1], "", f"{CHOOSE}; {ASK}", {}, ["3,1,2", "1,3,2"], "--"),  # the script sets it behind `setup`
        ((), [1, 2], "", ASK, {"CUDA_VISIBLE_DEVICES": "0,2,3"}, ["0,2,3", "0,3,2"], "--"),
        (TORCHRUN, [0, 1], CHOOSE, ASK, {}, ["3,1,2", "1,3,2"], "01"),
        (TORCHRUN, [0, 3], ASK, "", {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, ["0,1,2,3", "3,1,2,0"], "011"),  # begins anew
    ],
)
def test_each_rank_sees_its_gpu_first(
    launcher: tuple[str, ...],
    ids: list[int],
    before: str,
    after: str,
    env: dict[str, str],
    seen: list[str],
    starts: str,
    warm: Warm,
    tmp_path: Path,
) -> None:
    done = started(warm, tmp_path, launcher, ids, before, after, **env)
    assert done.returncode == 0, done.stderr
    device = f"cuda:{ids[0]}"
    count = len(seen[0].split(","))
    assert json.loads(done.stdout) == [[[each, count, [device]] for each in seen], False]
    assert "".join(sorted((tmp_path / "starts").read_text())) == starts


def test_cuda_that_nvml_alone_sees_is_as_if_it_were_not_there(warm: Warm, tmp_path: Path) -> None:
    """A driver that is too old, for instance: the original trains on the CPU, in one process."""
    broken = "torch._C._cuda_getDeviceCount = lambda: 0"
    done = started(warm, tmp_path, (), [0, 1], broken, f"ddp.wrap_model(torch.nn.Linear(2, 2))\n{SEEN}\nsys.exit()")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False 1 None\n"


def test_cuda_that_is_used_too_early_is_an_error(warm: Warm, tmp_path: Path) -> None:
    """Where no rank can be shown another order: the script sets the variable itself, and uses CUDA ahead of `setup`."""
    done = started(warm, tmp_path, (), [0, 1], f"{CHOOSE}; {ASK}")
    assert done.returncode == 1
    assert "CUDA was used with CUDA_VISIBLE_DEVICES=3,1,2 before ddp.setup()" in done.stderr
    assert "set PYTORCH_NVML_BASED_CUDA_CHECK=1" in done.stderr
    assert "Traceback" not in done.stderr
