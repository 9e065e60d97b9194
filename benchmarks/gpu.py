"""All that can be tried on the GPUs at hand, in some minutes: whether it is exact there, and what a step costs.

    python benchmarks/gpu.py [--minutes 9] [--device cpu] [--cases NAME ...] [--json FILE]

Needs torch alone (torchvision for the ResNets). First **exactness**: ranks against an emulation of `nn.DataParallel` in
one process on the same GPU, in float32 and under autocast with a gradient scaler. Then **steps**, beside hand-written
DDP and one process without a wrap: time and memory. With one GPU, several ranks share it and talk over gloo; with
several, each rank has its own and they talk over NCCL. What no time was left for is named. `--device cpu` tries the
command itself.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "scripts" / "on_device.py"
CASES = ("many", "convolutions", "transformer", "resnet18", "resnet50")
_LONGEST = 150.0  # seconds for one run
#: How far apart losses and norms may be: sums over ranks come in another order, and in half precision each counts.
_APART = {"none": 1e-3, "float16": 3e-2, "bfloat16": 3e-2}


@dataclass(frozen=True)
class Run:
    """One start of the script: a way to wrap the model, a case, and how it is trained."""

    wrap: str
    case: str
    ranks: int
    amp: str = "none"
    steps: int = 6
    batch_size: int = 12

    @property
    def command(self) -> list[str]:
        """How it is started."""
        options = ["--ranks", self.ranks, "--amp", self.amp, "--steps", self.steps, "--batch-size", self.batch_size]
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}"]
        by_hand = launcher if self.wrap == "hand" else []
        return [sys.executable, *by_hand, str(SCRIPT), self.wrap, self.case, *map(str, options)]


class Trials:
    """Runs, as long as there is time.

    Args:
        minutes: in all.
        device: "cuda" or "cpu".
    """

    def __init__(self, minutes: float, device: str) -> None:
        self._end = time.monotonic() + 60 * minutes
        self._device = device
        self._known: dict[Run, Any] = {}
        self.failed = False

    def of(self, run: Run) -> Any:
        """What a run printed; a text that says why it printed nothing."""
        if run not in self._known:
            self._known[run] = self._start(run)
            self.failed |= isinstance(self._known[run], str) and self._known[run] != _NO_TIME
        return self._known[run]

    def _start(self, run: Run) -> Any:
        left = min(_LONGEST, self._end - time.monotonic())
        if left < 10:
            return _NO_TIME
        env = {**os.environ, "DP2DDP_NPROC": str(run.ranks), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        if self._device == "cpu":
            env.update(DP2DDP_DEVICE="cpu", CUDA_VISIBLE_DEVICES="")
        try:
            done = subprocess.run(
                run.command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=left
            )
        except subprocess.TimeoutExpired:
            return f"no end after {left:.0f} s"
        found = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not found:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
            told = next((line for line in reversed(lines) if "Error" in line), lines[-1])
            return f"failed ({done.returncode}): {told.strip()[:150]}"
        return json.loads(found[-1])


_NO_TIME = "no time was left"


def exactness(
    trials: Trials, cases: Sequence[str], ranks: Sequence[int], amps: Sequence[str]
) -> Iterator[Sequence[Any]]:
    """Rows: what ranks train, beside the emulation on one device."""
    for case in cases:
        for count in ranks:
            for amp in amps:
                own, oracle = (trials.of(Run(wrap, case, count, amp)) for wrap in ("runtime", "oracle"))
                if isinstance(own, str) or isinstance(oracle, str):
                    verdict = own if isinstance(own, str) else f"oracle: {oracle}"
                    yield case, count, "", amp, "", verdict
                    continue
                apart = max(_apart(own[name], oracle[name]) for name in ("losses", "norms"))
                agrees = apart <= _APART[amp] and own["scale"] == oracle["scale"]
                trials.failed |= not agrees
                yield case, count, own["backend"], amp, f"{apart:.1e}", "agrees" if agrees else "**differs**"


def _apart(some: Sequence[float], others: Sequence[float]) -> float:
    """How far apart numbers are, relative to the larger one; infinity if only one side has a number."""
    pairs = [(a, b) for a, b in zip(some, others) if not (math.isnan(a) and math.isnan(b))]
    far = (abs(a - b) / max(abs(a), abs(b), 1e-6) for a, b in pairs)
    return max((each if math.isfinite(each) else math.inf for each in far), default=0.0)


def steps(trials: Trials, cases: Sequence[str], ranks: Sequence[int], amps: Sequence[str]) -> Iterator[Sequence[Any]]:
    """Rows: what a step costs, and the ratio to hand-written DDP."""
    for case in cases:
        for amp in amps:
            for count in ranks:
                timed: Mapping[str, Any] = {"amp": amp, "steps": 30, "batch_size": 64}
                hand = trials.of(Run("hand", case, count, **timed))
                for wrap in ("runtime", "hand", *(["plain"] if count == ranks[0] else [])):
                    found = trials.of(Run(wrap, case, count, **timed))
                    if isinstance(found, str):
                        yield case, amp, count, wrap, "", found, "", ""
                        continue
                    ratio = "" if isinstance(hand, str) else f"{found['ms'] / hand['ms']:.2f}"
                    memory = "" if found["peak_mb"] is None else f"{found['peak_mb']:.0f}"
                    yield case, amp, count, wrap, found["backend"], f"{found['ms']:.1f}", ratio, memory


def table(title: str, head: Sequence[str], rows: Iterator[Sequence[Any]]) -> list[list[str]]:
    """Print a table in Markdown, a row as soon as it is known; returns the rows."""
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    shown = []
    for row in rows:
        shown.append([str(cell) for cell in row])
        print(f"| {' | '.join(shown[-1])} |", flush=True)
    return shown


def main() -> int:
    """Try everything; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--json", type=Path, metavar="FILE")
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
    exact = ("case", "ranks", "backend", "autocast", "apart", "")
    cost = ("case", "autocast", "ranks", "", "backend", "ms a step", "of hand-written DDP", "peak MB")
    tables = {
        "exactness": table("Exactness", exact, exactness(trials, small, ranks, amps)),
        "steps": table("Steps", cost, steps(trials, given.cases, ranks, amps[:2])),
    }
    if given.json:
        given.json.write_text(json.dumps(tables, indent=1))
    return 1 if trials.failed else 0


if __name__ == "__main__":
    sys.exit(main())
