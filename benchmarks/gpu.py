"""All that can be tried on the GPUs at hand, in some minutes: whether it is exact there, and what a step costs.

    python benchmarks/gpu.py [--minutes 9] [--device cpu] [--cases NAME ...]

Needs torch alone (torchvision for the ResNets). First **exactness**: ranks against an emulation of `nn.DataParallel` in
one process on the same GPU, in float32 and under autocast with a gradient scaler. Then **steps**, beside hand-written
DDP and one process without a wrap: time and memory. With one GPU, one rank talks to itself over NCCL (`one`), and
several share it and talk over gloo; with several GPUs, each rank has its own and they talk over NCCL. What no time was
left for is named. `--device cpu` tries the command itself.

Without a GPU it says so, and does nothing. Exits with 1 if something differs or fails.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SCRIPT = Path(__file__).parent / "scripts" / "on_device.py"
CASES = ("many", "convolutions", "transformer", "segmentation", "resnet18", "resnet50")
_LONGEST = 150.0  # seconds for one start
#: How far apart losses and norms may be: sums over ranks come in another order, and in half precision each counts.
_APART = {"none": 1e-3, "float16": 3e-2, "bfloat16": 3e-2}
_NO_TIME = "no time was left"


class Way(NamedTuple):
    """How the script is started: a way to wrap models, and how many ranks."""

    wrap: str
    ranks: int

    def __str__(self) -> str:
        return f"{self.wrap} {self.ranks}"


class Run(NamedTuple):
    """What one start trains, among others."""

    case: str
    amp: str
    steps: int
    batch_size: int

    def __str__(self) -> str:
        return ":".join(map(str, self))


class Trials:
    """Starts, as long as there is time: one for each way, of all that it shall train.

    Args:
        minutes: in all.
        device: "cuda" or "cpu".
    """

    def __init__(self, minutes: float, device: str) -> None:
        self._end = time.monotonic() + 60 * minutes
        self._device = device
        self._known: dict[Way, dict[str, Any]] = {}
        self.failed = False

    def of(self, way: Way, run: Run) -> Any:
        """What a run came to; a text that says why it came to nothing."""
        found = self._known.get(way, {}).get(str(run), _NO_TIME)
        if "error" in found:
            self.failed = True
            return "failed: " + found["error"].strip().splitlines()[-1][:150]
        return found

    def start(self, way: Way, runs: Sequence[Run]) -> None:
        """Train all of it."""
        left = min(_LONGEST, self._end - time.monotonic())
        if left < 15:
            return
        env = {**os.environ, "DP2DDP_NPROC": str(way.ranks), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        if self._device == "cpu":
            env.update(DP2DDP_DEVICE="cpu", CUDA_VISIBLE_DEVICES="")
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={way.ranks}"]
        command = [sys.executable, *(launcher if way.wrap == "hand" else []), str(SCRIPT), way.wrap]
        command += ["--ranks", str(way.ranks), "--seconds", str(left - 10), *map(str, runs)]
        began = time.monotonic()
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            out, errors = process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            process.kill()
            out, errors = process.communicate()
            errors += f"\nError: no end after {left:.0f} s"
        print(f"<!-- {way}: {time.monotonic() - began:.0f} s -->", flush=True)
        found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        known = self._known[way] = {each.pop("run"): each for each in found}
        for each in known.values():
            if "error" in each:
                print(f"<!-- {way}: {each['error']} -->", flush=True)
        missing = [str(run) for run in runs if str(run) not in known]
        if missing and not any("error" in each for each in known.values()) and process.returncode:
            lines = [line for line in errors.splitlines() if line.strip()] or ["no message"]
            print("<!--", "\n".join(lines[-15:]), "-->", flush=True)
            told = next((line for line in reversed(lines) if "Error" in line), lines[-1])
            known[missing[0]] = {"error": told}


def exactness(trials: Trials, ranks: Sequence[int], runs: Sequence[Run]) -> Iterator[Sequence[Any]]:
    """Rows: what ranks train, beside the emulation on one device."""
    for count in ranks:
        way = Way("runtime" if count > 1 else "one", count)
        for each in (way, Way("oracle", count)):
            trials.start(each, runs)
        for run in runs:
            own, oracle = trials.of(way, run), trials.of(Way("oracle", count), run)
            if isinstance(own, str) or isinstance(oracle, str):
                yield run.case, str(way), run.amp, "", own if isinstance(own, str) else f"oracle: {oracle}"
                continue
            apart = max(_apart(own[name], oracle[name]) for name in ("losses", "norms"))
            agrees = apart <= _APART[run.amp] and own["scale"] == oracle["scale"]
            trials.failed |= not agrees
            yield run.case, str(way), run.amp, f"{apart:.1e}", "agrees" if agrees else "**differs**"


def _apart(some: Sequence[float], others: Sequence[float]) -> float:
    """How far apart numbers are, relative to the larger one; infinity if only one side has a number."""
    pairs = [(a, b) for a, b in zip(some, others) if not (math.isnan(a) and math.isnan(b))]
    far = (abs(a - b) / max(abs(a), abs(b), 1e-6) for a, b in pairs)
    return max((each if math.isfinite(each) else math.inf for each in far), default=0.0)


def steps(trials: Trials, ranks: Sequence[int], runs: Sequence[Run]) -> Iterator[Sequence[Any]]:
    """Rows: what a step costs, and the ratio to hand-written DDP."""
    for count in ranks:
        ways = [Way("hand", count), Way("runtime" if count > 1 else "one", count)]
        ways += [Way("plain", 1)] if count == 1 else []
        for way in ways:
            trials.start(way, runs)
        for run in runs:
            hand = trials.of(ways[0], run)
            for way in ways:
                found = trials.of(way, run)
                if isinstance(found, str):
                    yield run.case, run.amp, str(way), found, "", ""
                    continue
                ratio = "" if isinstance(hand, str) else f"{found['ms'] / hand['ms']:.2f}"
                memory = "" if found["peak_mb"] is None else f"{found['peak_mb']:.0f}"
                yield run.case, run.amp, str(way), f"{found['ms']:.1f}", ratio, memory


def show(title: str, head: Sequence[str], rows: Iterator[Sequence[Any]]) -> None:
    """Print a table in Markdown, a row as soon as it is known."""
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)


def main() -> int:
    """Try everything; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    given = parser.parse_args()
    import torch

    gpus = torch.cuda.device_count() if given.device == "cuda" else 0
    if given.device == "cuda" and not gpus:
        print("gpu: torch finds no GPU here, so there is nothing to try (--device cpu tries the command itself)")
        return 0
    name = torch.cuda.get_device_name() if gpus else "cpu"
    print(f"torch {torch.__version__}, {gpus or 'no'} GPU(s): {name}")
    trials, ranks = Trials(given.minutes, given.device), sorted({1, 2, max(gpus, 1)})
    amps = ("none", "float16", "bfloat16") if gpus else ("none",)
    small = [case for case in given.cases if not case.startswith("resnet")]
    exact = [Run(case, amp, 6, 12) for amp in amps for case in small]
    timed = [Run(case, amp, 30, 64) for amp in amps[:2] for case in given.cases]
    print("`one` is a single rank that meets itself over NCCL; `runtime` are several, `hand` is hand-written DDP.")
    show("Exactness", ("case", "", "autocast", "apart", ""), exactness(trials, ranks, exact))
    head = ("case", "autocast", "", "ms a step", "of hand-written DDP", "peak MB")
    show("Steps", head, steps(trials, ranks, timed))
    return 1 if trials.failed else 0


if __name__ == "__main__":
    sys.exit(main())
