"""Schedules of late ranks: converted scripts do as the originals, and a mistake that is planted is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "schedules"


def _run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARK), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=400)


def test_late_ranks_do_as_one_process() -> None:
    done = _run("--count", "20", "--seed", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ": 0 wrong" in done.stdout


@pytest.mark.parametrize("plant", ["removes at once", "reads at once"])
def test_a_planted_mistake_is_found(plant: str) -> None:
    done = _run("--count", "1", "--script", "overwrite", "--plant", plant)
    assert done.returncode == 1, done.stdout + done.stderr
