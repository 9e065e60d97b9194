"""Whether training is exact on the GPUs at hand, in some minutes.

    python benchmarks/gpu.py [--device cpu] [--cases NAME ...]

Ranks against an emulation of `nn.DataParallel` in one process on the same GPU, in float32 and under autocast with a
gradient scaler. With one GPU, one rank talks to itself over NCCL (`one`), and two share it and talk over gloo; with
several GPUs, each rank has its own and they talk over NCCL. (`training.py` measures what a step costs.) `--device cpu`
tries the command itself.

Without a GPU it says so, and does nothing. Exits with 1 if something differs or fails.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SCRIPT = Path(__file__).parent / "scripts" / "on_device.py"
CASES = ("many", "convolutions", "transformer", "segmentation")
_LONGEST = 300.0  # seconds for one start
#: How far apart losses and norms may be: sums over ranks come in another order, and in half precision each counts.
_APART = {"none": 1e-3, "float16": 3e-2, "bfloat16": 3e-2}


class Run(NamedTuple):
    """What one start trains, among others."""

    case: str
    amp: str
    steps: int
    batch_size: int

    def __str__(self) -> str:
        return ":".join(map(str, self))


def start(wrap: str, ranks: int, runs: Sequence[Run], device: str) -> list[Any]:
    """What each run came to: its results, or a text that says why there are none."""
    env = {**os.environ, "DP2DDP_NPROC": str(ranks), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    if device == "cpu":
        env.update(DP2DDP_DEVICE="cpu", CUDA_VISIBLE_DEVICES="")
    command = [sys.executable, str(SCRIPT), wrap, "--ranks", str(ranks), *map(str, runs)]
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=_LONGEST
        )
        out, errors = done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        out, errors = ((text or b"").decode(errors="replace") for text in (late.stdout, late.stderr))
        errors += f"\nError: no end after {_LONGEST:.0f} s"
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    lines = [line for line in errors.splitlines() if line.strip()] or ["no message"]
    if len(found) < len(runs):
        print("\n".join(lines[-15:]), file=sys.stderr)
    told = next((line for line in reversed(lines) if "Error" in line), lines[-1])
    return [*found, *[f"failed: {told[:150]}"] * (len(runs) - len(found))]


def exactness(ranks: Sequence[int], runs: Sequence[Run], device: str) -> Iterator[tuple[str, ...]]:
    """Rows: what ranks train, beside the emulation on one device; the last column is "agrees" where they do."""
    for count in ranks:
        wrap = "runtime" if count > 1 else "one"
        results = (start(each, count, runs, device) for each in (wrap, "oracle"))
        for run, own, oracle in zip(runs, *results):
            yield run.case, f"{wrap} {count}", run.amp, *compared(own, oracle, _APART[run.amp])


def compared(own: Any, oracle: Any, bound: float) -> tuple[str, str]:
    """How far apart two results are, and the verdict."""
    if isinstance(own, str) or isinstance(oracle, str):
        return "", own if isinstance(own, str) else f"oracle: {oracle}"
    apart = max(_apart(own[name], oracle[name]) for name in ("losses", "norms"))
    return f"{apart:.1e}", "agrees" if apart <= bound and own["scale"] == oracle["scale"] else "**differs**"


def _apart(some: Sequence[float], others: Sequence[float]) -> float:
    """How far apart numbers are, relative to the larger one; infinity if only one side has a number."""
    pairs = [(a, b) for a, b in zip(some, others) if not (math.isnan(a) and math.isnan(b))]
    far = (abs(a - b) / max(abs(a), abs(b), 1e-6) for a, b in pairs)
    return max((each if math.isfinite(each) else math.inf for each in far), default=0.0)


def main() -> int:
    """Try everything; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    given = parser.parse_args()
    import torch

    gpus = torch.cuda.device_count() if given.device == "cuda" else 0
    if given.device == "cuda" and not gpus:
        print("gpu: torch finds no GPU here, so there is nothing to try (--device cpu tries the command itself)")
        return 0
    print(f"torch {torch.__version__}, {gpus or 'no'} GPU(s): {torch.cuda.get_device_name() if gpus else 'cpu'}\n")
    runs = [Run(case, amp, 6, 12) for amp in (_APART if gpus else ["none"]) for case in given.cases]
    print("| case | ranks | autocast | apart | |\n|---|---|---|---|---|", flush=True)
    failed = False
    for row in exactness(sorted({1, 2, max(gpus, 1)}), runs, given.device):
        failed |= row[-1] != "agrees"
        print(f"| {' | '.join(row)} |", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
