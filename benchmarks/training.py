"""Time of a training step of converted scripts, as a ratio to hand-written DDP: same ranks, one run.

All variants live in the same rank processes. In each round they train an epoch, and take turns in it, some steps each,
in another order each time, so that the machine's load falls on all of them. Where a process finds memory favours one
variant or another for as long as it lives, by some hundredths: so the ranks are started several times. The ratio is the
median over all rounds of (variant's epoch / hand-written epoch of the same round). On a busy machine ranks wait for
each other's turn on a processor, the more often they meet the longer: ratios mean something only where there is a
processor for each rank.

    python benchmarks/training.py [--ranks 2] [--starts 5] [--rounds 12] [--samples 2048] [--batch-size 64]
                                  [--max sharded=1.05 ...]

Accelerate and Lightning Fabric take part where they are installed. With `--max` it exits with 1 where a variant's
ratio is above its bound.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
Epoch = Callable[[], Iterator[None]]
"""Trains an epoch; stops ahead of each step."""
Round = dict[str, float]
"""Seconds of an epoch, by variant."""
TURN = 8  # steps


def main() -> None:
    """Start the ranks several times, or be one."""
    arguments = _parse()
    if "RANK" in os.environ:
        _measure(arguments)
        return
    starts = []
    for number in range(arguments.starts):
        starts.append(_start_ranks(arguments))
        print(f"start {number + 1}: {_told(_ratios(starts[-1]))}", flush=True)
    _report(list(itertools.chain(*starts)), arguments)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=12, help="at each start, behind one to warm up")
    parser.add_argument("--samples", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max", nargs="*", default=[], metavar="VARIANT=RATIO")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)  # where rank 0 leaves its rounds
    arguments = parser.parse_args()
    if min(arguments.ranks, arguments.starts, arguments.rounds) < 1:
        parser.error("there must be a rank, a start and a round at least")
    return arguments


def _start_ranks(arguments: argparse.Namespace) -> list[Round]:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={arguments.ranks}", "--standalone"]
    environment = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", **os.environ}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "rounds.json")
        sizes = [f"--samples={arguments.samples}", f"--batch-size={arguments.batch_size}"]
        script = [sys.argv[0], f"--rounds={arguments.rounds}", *sizes, f"--out={out}"]
        subprocess.run([*command, *script], env=environment, check=True)
        rounds: list[Round] = json.loads(out.read_text())
    return rounds


def _measure(arguments: argparse.Namespace) -> None:
    import torch.distributed as dist

    sys.argv = [sys.argv[0], f"--samples={arguments.samples}", f"--batch-size={arguments.batch_size}"]
    variants = {
        "sharded": _epoch_of(_converted("sharded")),
        "gathered": _epoch_of(_converted("gathered")),
        "by hand": _epoch_of((SCRIPTS / "by_hand.py").read_text()),
        **_frameworks(),
    }
    turns = -(-(_steps(arguments) + 1) // TURN)  # one step more: it ends the epoch
    rounds = [_one_round(variants, turns, number) for number in range(arguments.rounds + 1)]
    if dist.get_rank() == 0:
        arguments.out.write_text(json.dumps(rounds[1:]))
    dist.barrier()


def _one_round(variants: Mapping[str, Epoch], turns: int, number: int) -> Round:
    """Train an epoch of each variant, in turns."""
    import torch.distributed as dist

    epochs = {name: epoch() for name, epoch in variants.items()}
    seconds = dict.fromkeys(variants, 0.0)
    order = list(variants)
    for turn in range(turns):
        random.Random(f"{number} {turn}").shuffle(order)  # the same on all ranks
        for name in order:
            dist.barrier()
            start = time.perf_counter()
            for _ in itertools.islice(epochs[name], TURN):
                pass
            dist.barrier()
            seconds[name] += time.perf_counter() - start
    assert all(next(epoch, "ended") == "ended" for epoch in epochs.values())
    return seconds


def _steps(arguments: argparse.Namespace) -> int:
    return -(-int(arguments.samples) // int(arguments.batch_size))


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


def _ratios(rounds: list[Round]) -> dict[str, list[float]]:
    return {name: [each[name] / each["by hand"] for each in rounds] for name in rounds[0]}


def _told(ratios: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {statistics.median(all_of):.3f}" for name, all_of in ratios.items())


def _report(rounds: list[Round], arguments: argparse.Namespace) -> None:
    limits = {name: float(ratio) for name, ratio in (limit.split("=") for limit in arguments.max)}
    print(f"{arguments.ranks} ranks, batch {arguments.batch_size}, starts: {arguments.starts}, rounds: {len(rounds)}")
    failed = False
    for name, ratios in _ratios(rounds).items():
        ratio, low, high = statistics.median(ratios), min(ratios), max(ratios)
        step = statistics.median(each[name] for each in rounds) / _steps(arguments) * 1000
        print(f"{name:>16}  {step:7.2f} ms a step   ratio {ratio:.3f}  ({low:.3f} to {high:.3f})")
        failed |= ratio > limits.get(name, float("inf"))
    if failed:
        raise SystemExit("a ratio is above its bound")


if __name__ == "__main__":
    main()
