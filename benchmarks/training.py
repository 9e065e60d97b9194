"""Time of a training step of converted scripts, as a ratio to hand-written DDP: same ranks, one run.

All variants live in the same rank processes. In each round they train an epoch, and take turns in it, some steps each,
in another order each time, so that the machine's load falls on all of them. The ratio is the median over rounds of
(variant's epoch / hand-written epoch of the same round). On a busy machine ranks wait for each other's turn on a
processor, the more often they meet the longer: ratios mean something only where there is a processor for each rank.

    python benchmarks/training.py [--ranks 2] [--rounds 15] [--samples 2048] [--batch-size 64] [--max sharded=1.05 ...]

Accelerate and Lightning Fabric take part where they are installed. With `--max` it exits with 1 where a variant's
ratio is above its bound.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
Epoch = Callable[[], Iterator[None]]
"""Trains an epoch; stops ahead of each step."""
TURN = 8  # steps


def main() -> None:
    """Start the ranks, or be one."""
    arguments = _parse()
    if "RANK" in os.environ:
        _measure(arguments)
        return
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={arguments.ranks}", "--standalone"]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    raise SystemExit(subprocess.run([*command, *sys.argv], env=environment, check=False).returncode)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max", nargs="*", default=[], metavar="VARIANT=RATIO")
    return parser.parse_args()


def _measure(arguments: argparse.Namespace) -> None:
    import torch.distributed as dist

    limits = {name: float(ratio) for name, ratio in (limit.split("=") for limit in arguments.max)}
    sys.argv = [sys.argv[0], f"--samples={arguments.samples}", f"--batch-size={arguments.batch_size}"]
    variants = {
        "sharded": _epoch_of(_converted("sharded")),
        "gathered": _epoch_of(_converted("gathered")),
        "by hand": _epoch_of((SCRIPTS / "by_hand.py").read_text()),
        **_frameworks(),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    steps = -(-arguments.samples // arguments.batch_size)
    for number in range(arguments.rounds + 1):
        epochs = {name: epoch() for name, epoch in variants.items()}
        taken = dict.fromkeys(variants, 0.0)
        for turn in range(-(-(steps + 1) // TURN)):
            random.Random(f"{number} {turn}").shuffle(order)  # the same on all ranks
            for name in order:
                dist.barrier()
                start = time.perf_counter()
                for _ in itertools.islice(epochs[name], TURN):
                    pass
                dist.barrier()
                taken[name] += time.perf_counter() - start
        assert all(next(epoch, "ended") == "ended" for epoch in epochs.values())
        if number:  # the first round warms up
            for name in variants:
                seconds[name].append(taken[name])
    if dist.get_rank() == 0:
        _report(seconds, arguments, limits)
    dist.barrier()


def _frameworks() -> dict[str, Epoch]:
    """The same training with the frameworks that are installed."""
    scripts = {"accelerate": "with_accelerate.py", "lightning_fabric": "with_fabric.py"}
    installed = [name for name in scripts if importlib.util.find_spec(name) is not None]
    return {name: _epoch_of((SCRIPTS / scripts[name]).read_text()) for name in installed}


def _converted(strategy: str) -> str:
    from dp2ddp.pipeline import convert_source
    from dp2ddp.rules import Options

    original = SCRIPTS / "dataparallel.py"
    conversion = convert_source(original.read_text(), str(original), Options(strategy=strategy))
    assert [decision.strategy for decision in conversion.strategies] == [strategy]
    return conversion.new_text


def _epoch_of(text: str) -> Epoch:
    """Run a script's own text, and hand out its `run_epoch`, which is made to stop ahead of each step."""
    step = "        optimizer.zero_grad()\n"
    assert text.count(step) == 1
    scope: dict[str, object] = {"__name__": "__benchmark__"}
    exec(compile(text.replace(step, f"        yield\n{step}"), "benchmark", "exec"), scope)
    return scope["run_epoch"]  # type: ignore[return-value]


def _report(seconds: dict[str, list[float]], arguments: argparse.Namespace, limits: dict[str, float]) -> None:
    steps = -(-arguments.samples // arguments.batch_size)
    out = sys.__stdout__
    assert out is not None
    print(f"{arguments.ranks} ranks, batch {arguments.batch_size}, {arguments.rounds} rounds", file=out)
    failed = False
    for name, times in seconds.items():
        ratios = [mine / hand for mine, hand in zip(times, seconds["by hand"])]
        ratio, low, high = statistics.median(ratios), min(ratios), max(ratios)
        step = statistics.median(times) / steps * 1000
        print(f"{name:>16}  {step:7.2f} ms a step   ratio {ratio:.3f}  ({low:.3f} to {high:.3f})", file=out)
        failed |= ratio > limits.get(name, float("inf"))
    out.flush()
    if failed:
        raise SystemExit("a ratio is above its bound")


if __name__ == "__main__":
    main()
