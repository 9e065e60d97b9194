"""How what the runtime costs grows: with ranks, tensors, rows, outputs, samples and parameters.

    python benchmarks/growth.py [TABLE ...]

Each row is measured by ranks of its own, on the CPU, one thread each. Milliseconds are rank 0's processor time, which a
busy machine changes little: of a training step, of the start of an epoch (`samples`), of the wrap (`parameters`). The
exponent is that of the growth from the row before: 1 is linear. A small model's step is all runtime, but for some
tenths of a millisecond.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

PLAIN = {"ranks": 2, "tensors": 10, "rows": 64, "outputs": 10, "samples": 0, "parameters": 0}
TABLES = {
    "ranks": (1, 2, 4, 8),
    "tensors": (10, 100, 1000, 3000),
    "rows": (8, 64, 512, 4096),
    "outputs": (4, 400, 40_000, 400_000),
    "samples": tuple(10**n for n in range(2, 8)),
    "parameters": (10**6, 10**7, 10**8),
}
_STEPS, _FIRST = 20, 8  # steps that count, behind those that don't


def be_rank(task: dict[str, int]) -> None:
    """Train what a row says, and print rank 0's milliseconds."""
    import dp2ddp_runtime as ddp
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    ddp.setup(start="now")
    width = max(4, math.isqrt(task["parameters"] // 10))
    layers = [nn.Linear(width, width, bias=bool(task["parameters"])) for _ in range(task["tensors"] - 1)]
    net: Any = nn.Sequential(*layers, nn.Linear(width, task["outputs"], bias=False))
    samples = task["samples"] or task["rows"] * (_STEPS + _FIRST)
    data = TensorDataset(torch.zeros(1, width).expand(samples, width))
    loader = ddp.shard_loader(DataLoader(data, task["rows"], shuffle=True))
    ddp.wrap_model(nn.Linear(1, 1))  # the first wrap meets the other ranks
    if task["parameters"]:
        spent = [_spent(lambda: ddp.wrap_model(net))]
    elif task["samples"]:
        spent = [_spent(lambda: next(iter(loader))) for _ in range(2)][1:]
    else:
        net = ddp.wrap_model(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

        spent = [_spent(functools.partial(step, x)) for (x,) in loader][_FIRST:]
    print(statistics.median(spent) * 1e3)


def _spent(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--row", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        be_rank(given.row)
        return
    for name in given.tables or TABLES:
        print(f"\n{name:>12}{'ms':>10}{'exponent':>10}", flush=True)
        before = (0, 0.0)
        for size in TABLES[name]:
            task = {**PLAIN, name: size}
            env = {**os.environ, "DP2DDP_NPROC": str(task["ranks"]), "DP2DDP_DEVICE": "cpu", "OMP_NUM_THREADS": "1"} | {
                "PYTHONHASHSEED": "0"
            }
            command = [sys.executable, __file__, "--row", json.dumps(task)]
            ms = float(subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE).stdout)
            grown = math.log(ms / before[1]) / math.log(size / before[0]) if before[0] else math.nan
            print(f"{size:12}{ms:10.2f}{grown:10.2f}", flush=True)
            before = size, ms


if __name__ == "__main__":
    main()
