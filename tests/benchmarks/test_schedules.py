"""Schedules of late ranks: converted scripts do as the originals, and a mistake that is planted is found."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from schedules import __main__ as command
from schedules.play import PLANTS


def test_late_ranks_do_as_one_process(capfd: pytest.CaptureFixture[str]) -> None:
    """Each script once; many more of them are played by hand."""
    assert command.main(["--count=10", "--seed=1", "--jobs=5"]) == 0, capfd.readouterr()
    assert ": 0 wrong" in capfd.readouterr().out


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_mistake_is_found(plant: str) -> None:
    assert command.main(["--count=1", "--script=overwrite", "--plant", plant]) == 1
