"""Which GPU a rank sees: its own one, whoever starts it and whatever the script does before `setup`."""

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
from dp2ddp.pretend_cuda import install
install(4)
import threading, torch, json
BEFORE
import dp2ddp_runtime as ddp
AFTER
ddp.setup(device_ids=IDS)
assert "PYTORCH_NVML_BASED_CUDA_CHECK" not in os.environ
in_thread = []
thread = threading.Thread(target=lambda: in_thread.append(str(torch.zeros(1).cuda().device)))
thread.start()
thread.join()
moved = str(torch.zeros(1).cuda(0).device), str(torch.zeros(1).to("cuda").device), *in_thread
mine = os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count(), ddp.device_count(), str(ddp.device())
print(json.dumps([ddp.gather([*mine, sorted(set(moved))]), torch.distributed.is_initialized()]))
"""
ASK = "assert torch.cuda.is_available()"
CHOOSE = 'os.environ["CUDA_VISIBLE_DEVICES"] = "3,1,2"'
SAY = "print('said', flush=True)"
SEEN = 'print(ddp.device(), torch.cuda.is_available(), os.environ.get("CUDA_VISIBLE_DEVICES"))'
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
    command = [sys.executable, *launcher, str(script)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, cwd=folder)


@pytest.mark.parametrize(
    ("ids", "before", "after", "env", "gpus", "count"),
    [
        ([0, 1], CHOOSE, ASK, {}, ["3", "1"], 3),  # the original counts the other, too
        ("3,1", "", "", {"CUDA_VISIBLE_DEVICES": "0"}, ["3", "1"], 2),  # as if the script set the variable there
    ],
)
def test_a_plain_start_shows_each_rank_its_gpu(
    ids: Any, before: str, after: str, env: dict[str, str], gpus: list[str], count: int, tmp_path: Path
) -> None:
    done = started(tmp_path, [], ids, before, after, **env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0] == [[gpu, 1, count, "cuda:0", ["cuda:0"]] for gpu in gpus]


@pytest.mark.parametrize(
    ("ids", "before", "after", "gpus", "starts"),
    [
        ([0, 1], "", f"{ASK}; {CHOOSE}", ["3", "1"], "01"),  # NVML answers
        ([3, 1], "", f"{SAY}; {ASK}; x = torch.zeros(1).cuda()", ["3", "1"], "0011"),  # it has read the environment
    ],
)
def test_under_a_launcher_each_rank_sees_its_gpu(
    ids: Any, before: str, after: str, gpus: list[str], starts: str, tmp_path: Path
) -> None:
    done = started(tmp_path, TORCHRUN, ids, before, after)
    assert done.returncode == 0, done.stderr
    *said, told = done.stdout.splitlines()
    assert json.loads(told)[0] == [[gpu, 1, 2, "cuda:0", ["cuda:0"]] for gpu in gpus]
    assert said == ["said"] * (SAY in after)
    assert "".join(sorted((tmp_path / "starts").read_text())) == starts


def test_cuda_that_nvml_alone_sees_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    """A driver that is too old, for instance: the original trains on the CPU."""
    script = tmp_path / "train.py"
    broken = "torch._C._cuda_getDeviceCount = lambda: 0"
    script.write_text(f"{SCRIPT.split('BEFORE')[0]}{broken}\nimport dp2ddp_runtime as ddp\n{SAY}\nddp.setup()\n{SEEN}")
    done = run(tmp_path, TORCHRUN, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["said", "cpu False None"]
    assert sorted((tmp_path / "starts").read_text()) == [*"0011"]


def test_cuda_that_is_used_too_early_is_an_error(tmp_path: Path) -> None:
    done = started(tmp_path, [], [0, 1], f"{CHOOSE}; {ASK}")
    assert done.returncode == 1
    assert "import dp2ddp_runtime above the line that does so" in done.stderr
    assert "Traceback" not in done.stderr
