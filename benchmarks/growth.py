"""How what the runtime costs grows: with ranks, tensors, rows, outputs, samples and parameters.

    python benchmarks/growth.py [TABLE ...] [--steps 20]

Tables: ranks, tensors, rows, outputs, samples, parameters. Each row is measured by ranks of its own, on the CPU, one
thread each. Milliseconds are rank 0's processor time, which a busy machine changes little: of a training step, of the
start of an epoch (`samples`), of the wrap (`parameters`). The exponent is that of the growth from the row before: 1 is
linear. A small model's step is all runtime, but for some tenths of a millisecond.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import resource
import time
from collections.abc import Mapping
from multiprocessing.queues import SimpleQueue
from typing import NamedTuple

from rank_set import places


class Task(NamedTuple):
    """One row of a table: what is trained, and by how many ranks."""

    ranks: int = 2
    tensors: int = 10
    rows: int = 64
    outputs: int = 10
    samples: int = 0
    parameters: int = 0


TABLES: Mapping[str, tuple[str, tuple[Task, ...]]] = {
    "ranks": ("a step", tuple(Task(ranks=n) for n in (1, 2, 4, 8))),
    "tensors": ("a step", tuple(Task(tensors=n) for n in (10, 100, 1000, 3000))),
    "rows": ("a step", tuple(Task(rows=n) for n in (8, 64, 512, 4096))),
    "outputs": ("a step", tuple(Task(outputs=n) for n in (4, 400, 40_000, 400_000))),
    "samples": ("the start of an epoch", tuple(Task(samples=10**n) for n in range(2, 8))),
    "parameters": ("the wrap", tuple(Task(parameters=10**n) for n in (6, 7, 8))),
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    if unknown := set(arguments.tables) - set(TABLES):
        parser.error(f"no table {sorted(unknown)[0]!r} (there are {', '.join(TABLES)})")
    for name in arguments.tables or TABLES:
        what, tasks = TABLES[name]
        print(f"\n{name}: processor time of {what}\n{name:>12}{'ms':>10}{'exponent':>10}{'peak MB':>10}", flush=True)
        before = (0, 0.0)
        for task in tasks:
            size = getattr(task, name)
            ms, peak = _measured(task, arguments.steps)
            grown = math.log(ms / before[1]) / math.log(size / before[0]) if before[0] else math.nan
            print(f"{size:12}{ms:10.2f}{grown:10.2f}{peak:10.0f}", flush=True)
            before = size, ms


def _measured(task: Task, steps: int) -> tuple[float, float]:
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    os.environ["PYTHONHASHSEED"] = "0"
    ranks = [
        context.Process(target=_be_rank, args=(place, task, steps, queue))
        for place in places(task.ranks, task.ranks == 1, "cpu")
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        raise SystemExit("a rank failed")
    found: tuple[float, float] = queue.get()
    return found


def _be_rank(place: Mapping[str, str], task: Task, steps: int, queue: SimpleQueue[tuple[float, float]]) -> None:
    os.environ.update(place)
    vars(multiprocessing.process)["_parent_process"] = None  # a process as torchrun starts it, and nobody's worker
    import dp2ddp_runtime as ddp
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    ddp.setup()
    width = max(4, math.isqrt(task.parameters // 10))
    layers = [nn.Linear(width, width, bias=bool(task.parameters)) for _ in range(task.tensors - 1)]
    before = time.process_time()
    net = ddp.wrap_model(nn.Sequential(*layers, nn.Linear(width, task.outputs, bias=False)))
    spent = [time.process_time() - before]
    if not task.parameters:
        data = TensorDataset(torch.zeros(1, width).expand(task.samples or task.rows * (steps + 8), width))
        loader = ddp.shard_loader(DataLoader(data, task.rows, shuffle=True))
        if task.samples:
            next(iter(loader))
            before = time.process_time()
            next(iter(loader))
            spent = [time.process_time() - before]
        else:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
            spent = []
            for (x,) in loader:
                before = time.process_time()
                optimizer.zero_grad()
                net(x).square().mean().backward()
                optimizer.step()
                spent.append(time.process_time() - before)
            spent = spent[8:]
    if ddp.is_main():
        queue.put((sorted(spent)[len(spent) // 2] * 1e3, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3))


if __name__ == "__main__":
    main()
