"""What a step of a rank on the CPU has freed is there for the next one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

_PROGRAM = """
import resource, torch
from dp2ddp_runtime import gpus as devices
torch.set_num_threads(1)
devices.keep_memory()
for step in range(20):
    held = [torch.ones(10_000_000) for _ in range(2)]  # glibc by itself maps what is over 32 MB anew each time
    del held
    if step == 9:  # where the first blocks lie may change
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc is told")
def test_freed_memory_is_kept() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", _PROGRAM]
    pages = int(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
    assert pages < 1000, f"{pages} pages were cleared in ten steps of 80 MB"
