"""`benchmarks/gpu.py`: tried on the CPU, where what it says is known; and what it says where something differs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from starts import Done, Warm

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
gpu: Any = importlib.import_module("gpu")


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert gpu.main() == 0
    assert capsys.readouterr().out.startswith("gpu: torch finds no GPU here")


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_train_as_the_emulation_does(ranks: int, warm: Warm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single one, too, which goes through all that several do."""

    def run(command: list[str], *, env: dict[str, str], **_: Any) -> Done:
        return warm.start(*command[1:], nproc=ranks, env=env, forked=True)

    monkeypatch.setattr(gpu.subprocess, "run", run)
    ((*_, apart, verdict),) = gpu.exactness([ranks], [gpu.Run("convolutions", "none", 3, 12)], "cpu")
    assert (apart, verdict) == ("0.0e+00", "agrees")


GOOD = {"losses": [1.0, 0.5], "norms": [2.0], "scale": 1.0}


@pytest.mark.parametrize(
    ("own", "verdict"),
    [
        (GOOD, "agrees"),
        ({**GOOD, "losses": [1.0, 0.51]}, "**differs**"),
        ({**GOOD, "norms": [float("nan")]}, "**differs**"),
        ({**GOOD, "scale": 0.5}, "**differs**"),
        ("failed: RuntimeError: no", "failed: RuntimeError: no"),
    ],
)
def test_what_differs_is_told(own: Any, verdict: str) -> None:
    assert gpu.compared(own, GOOD, 1e-3)[1] == verdict


def test_what_a_start_dies_of_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text("raise SystemExit('ValueError: no such card')")
    monkeypatch.setattr(gpu, "SCRIPT", script)
    assert gpu.start("one", 1, [gpu.Run("many", "none", 6, 12)], "cpu") == ["failed: ValueError: no such card"]
