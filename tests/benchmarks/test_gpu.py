"""`benchmarks/gpu.py`: tried on the CPU, where what it says is known; and what it says where something differs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
gpu: Any = importlib.import_module("gpu")


def test_without_a_gpu_it_says_so() -> None:
    done = subprocess.run([sys.executable, str(BENCHMARKS / "gpu.py")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.startswith("gpu: torch finds no GPU here")) == (0, True)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_train_as_the_emulation_does(ranks: int) -> None:
    """A single one, too, which goes through all that several do."""
    trials = gpu.Trials(5, "cpu")
    ((*_, apart, verdict),) = gpu.exactness(trials, [ranks], [gpu.Run("convolutions", "none", 3, 12)])
    assert (apart, verdict, trials.failed) == ("0.0e+00", "agrees", False)


MANY = gpu.Run("many", "none", 6, 12)


class Made(gpu.Trials):
    """Starts whose outcome is made up."""

    def __init__(self, outcomes: dict[str, Any]) -> None:
        super().__init__(1, "cpu")
        self._outcomes = outcomes

    def start(self, way: gpu.Way, runs: Sequence[gpu.Run]) -> None:
        if way.wrap in self._outcomes:
            self._known[way] = {str(run): self._outcomes[way.wrap] for run in runs}


GOOD = {"losses": [1.0, 0.5], "norms": [2.0], "scale": 1.0, "ms": 3.0, "peak_mb": None}


@pytest.mark.parametrize(
    ("own", "verdict"),
    [
        (GOOD, "agrees"),
        ({**GOOD, "losses": [1.0, 0.51]}, "**differs**"),
        ({**GOOD, "norms": [float("nan")]}, "**differs**"),
        ({**GOOD, "scale": 0.5}, "**differs**"),
        ({"error": "Traceback ...\nRuntimeError: no\n"}, "failed: RuntimeError: no"),
    ],
)
def test_what_differs_is_told(own: Any, verdict: str) -> None:
    trials = Made({"runtime": own, "oracle": GOOD})
    assert [row[-1] for row in gpu.exactness(trials, [2], [MANY])] == [verdict]
    assert trials.failed == (verdict != "agrees")


def test_ratios_are_to_ddp_by_hand_and_nothing_is_started_without_time() -> None:
    trials = Made({"one": GOOD, "hand": {**GOOD, "ms": 2.0}})
    assert [row[2:5] for row in gpu.steps(trials, [1], [MANY])] == [
        ("hand 1", "2.0", "1.00"),
        ("one 1", "3.0", "1.50"),
        ("plain 1", "no time was left", ""),
    ]
    assert not trials.failed
    late, way = gpu.Trials(0, "cpu"), gpu.Way("plain", 1)
    late.start(way, [MANY])
    assert late.of(way, MANY) == "no time was left"


def test_what_a_start_dies_of_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text("raise SystemExit('ValueError: no such card')")
    monkeypatch.setattr(gpu, "SCRIPT", script)
    trials, way = gpu.Trials(1, "cpu"), gpu.Way("plain", 1)
    trials.start(way, [MANY])
    assert trials.of(way, MANY) == "failed: ValueError: no such card"
    assert trials.failed
