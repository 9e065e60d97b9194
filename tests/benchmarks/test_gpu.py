"""`benchmarks/gpu.py`: tried on the CPU, where what it says is known; and what it says where something differs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
gpu: Any = importlib.import_module("gpu")


def test_without_a_gpu_it_says_so() -> None:
    done = subprocess.run([sys.executable, str(BENCHMARKS / "gpu.py")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.startswith("gpu: torch finds no GPU here")) == (0, True)


def test_ranks_train_as_the_emulation_does() -> None:
    trials = gpu.Trials(5, "cpu")
    ((*_, apart, verdict),) = gpu.exactness(trials, ["convolutions"], [2], ["none"])
    assert (apart, verdict, trials.failed) == ("0.0e+00", "agrees", False)


class Made(gpu.Trials):
    """Runs whose outcome is made up."""

    def __init__(self, outcomes: dict[str, Any]) -> None:
        super().__init__(1, "cpu")
        self._outcomes = outcomes

    def _start(self, run: gpu.Run) -> Any:
        return self._outcomes[run.wrap]


GOOD = {"losses": [1.0, 0.5], "norms": [2.0], "scale": 1.0, "backend": "gloo", "ms": 3.0, "peak_mb": None}


@pytest.mark.parametrize(
    ("own", "verdict"),
    [
        (GOOD, "agrees"),
        ({**GOOD, "losses": [1.0, 0.51]}, "**differs**"),
        ({**GOOD, "norms": [float("nan")]}, "**differs**"),
        ({**GOOD, "scale": 0.5}, "**differs**"),
        ("failed (1): RuntimeError: no", "failed (1): RuntimeError: no"),
    ],
)
def test_what_differs_is_told(own: Any, verdict: str) -> None:
    trials = Made({"runtime": own, "oracle": GOOD})
    assert [row[-1] for row in gpu.exactness(trials, ["many"], [2], ["none"])] == [verdict]
    assert trials.failed == (verdict != "agrees")


def test_ratios_are_to_ddp_by_hand_and_nothing_is_started_without_time() -> None:
    trials = Made({"runtime": GOOD, "hand": {**GOOD, "ms": 2.0}, "plain": gpu._NO_TIME})
    rows = list(gpu.steps(trials, ["many"], [1], ["none"]))
    assert [row[3:7] for row in rows] == [
        ("runtime", "gloo", "3.0", "1.50"),
        ("hand", "gloo", "2.0", "1.00"),
        ("plain", "", "no time was left", ""),
    ]
    assert not trials.failed
    assert gpu.Trials(0, "cpu").of(gpu.Run("plain", "many", 1)) == gpu._NO_TIME
