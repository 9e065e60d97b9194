"""Where float64 can't tell what rounding does, nothing is shown; but for what no rounding makes."""

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


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (HALF, "the script makes its parameters less precise than float64 itself"),
        (ONLY_FLOAT32, "in float64 the original script fails: AssertionError"),
    ],
)
def test_rounding_is_no_difference(verify: Callable[[str, str], Result], script: str, why: str) -> None:
    result = verify(script, tiny.converted(script))
    assert result.exit_code == 4, result.output
    assert result.stdout.startswith("NOT SHOWN in float32 they differ (step ")
    assert f"which may be rounding; {why}" in result.stdout


def test_a_factor_is_no_rounding(verify: Callable[[str, str], Result]) -> None:
    wrong = tiny.converted(ONLY_FLOAT32).replace("loss = criterion(output, y)\n", "loss = criterion(output, y) * 1.5\n")
    result = verify(ONLY_FLOAT32, wrong)
    assert result.exit_code == 1, result.output
    assert "the loss is 1.5 times the original's" in result.stdout
