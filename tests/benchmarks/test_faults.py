"""The soak, with a few kills."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_few_kills_leave_nothing_behind(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "faults.py"), "--kills=5", "--seed=4", f"--json={summary}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    found = json.loads(summary.read_text())
    assert (found["kills"], found["wrong"]) == (5, {})
    assert found["saves"] >= 5
    assert found["slowest end, seconds"] > 0
