"""How much rounding may do, where float64 can't tell: measured by an original that begins a unit elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from click.testing import CliRunner, Result

from dp2ddp.cli import main

HALF = tiny.ORIGINAL.replace("nn.Linear(HIDDEN, 2)))", "nn.Linear(HIDDEN, 2)).bfloat16())").replace(
    "x, y = x.cuda(), y.cuda()", "x, y = x.bfloat16().cuda(), y.cuda()"
)

ONLY_FLOAT32 = tiny.ORIGINAL.replace("criterion =", "assert inputs.dtype == torch.float32\ncriterion =")


@pytest.fixture
def verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Result]:
    """Compares, on three ranks, a script with a conversion of it."""
    monkeypatch.chdir(tmp_path)

    def compared(script: str, conversion: str) -> Result:
        tiny.lay_out(tmp_path, script)
        (tmp_path / "train_ddp.py").write_text(conversion)
        return CliRunner().invoke(main, ["verify", "train.py", "--converted", "train_ddp.py", "--nproc", "3"])

    return compared


def test_rounding_is_no_mistake(verify: Callable[[str, str], Result]) -> None:
    result = verify(HALF, tiny.converted(HALF))
    assert result.exit_code == 0, result.output
    assert "the script makes its parameters less precise than float64 itself" in result.stdout
    assert "are rounding's, as the original shows that begins a unit of rounding elsewhere" in result.stdout


def test_a_small_mistake_is_no_rounding_in_float32(verify: Callable[[str, str], Result]) -> None:
    """A thousandth was taken for rounding, once."""
    right = tiny.converted(ONLY_FLOAT32)
    assert verify(ONLY_FLOAT32, right).exit_code == 0
    wrong = right.replace("loss = criterion(output, y)\n", "loss = criterion(output, y) * 1.0005\n")
    result = verify(ONLY_FLOAT32, wrong)
    assert result.exit_code == 1, result.output
    assert "in float64 the original script fails (AssertionError" in result.stdout
    assert "DIFFERENT step 1: " in result.stdout
