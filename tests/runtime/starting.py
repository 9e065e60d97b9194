"""Starting scripts for real, as a user does: plainly and under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS")},
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    "DP2DDP_DEVICE": "cpu",
}
START = "import os, sys, time\nimport torch\nimport dp2ddp_runtime as ddp\n"


def write(folder: Path, body: str, name: str = "train.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(START + textwrap.dedent(body))
    return path


def start(*command: object, nproc: int | None = 2, **options: Any) -> subprocess.CompletedProcess[str]:
    env = {**ENVIRONMENT, **({"DP2DDP_NPROC": str(nproc)} if nproc else {}), **options.pop("env", {})}
    command = (sys.executable, *map(str, command))
    options = {"timeout": 60, **options}
    return subprocess.run(command, env=env, capture_output=True, text=True, **options)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for_end(pids: list[int], seconds: float = 5) -> list[int]:
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [pid for pid in pids if is_alive(pid)]


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
