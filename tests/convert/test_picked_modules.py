"""Scripts that import a module by a name that is put together when they run: all that it may be are converted."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dp2ddp.cli import main


@pytest.mark.parametrize(
    "pick",
    ['"models." + name', '"models.%s_net" % name', 'f"models.{name}"', '"models.{}".format(name)'],
)
@pytest.mark.parametrize("package", [True, False])
def test_modules_that_a_script_picks_at_run_time_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pick: str, package: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    script = "import importlib\nimport sys\n\nname = sys.argv[1]\nwhich = {}\nimportlib.import_module(which).build()\n"
    Path("train.py").write_text(script.format(pick))
    Path("models").mkdir()
    Path("models/big_net.py").write_text(
        "from torch import nn\n\n\ndef build():\n    return nn.DataParallel(nn.Linear(1, 1))\n"
    )
    if package:
        Path("models/__init__.py").touch()
    result = CliRunner().invoke(main, ["convert", "train.py", "--in-place"])
    assert result.exit_code == 0, result.output
    assert "return ddp.wrap_model(nn.Linear(1, 1))" in Path("models/big_net.py").read_text(), result.output
    assert "ddp.setup()\n" in Path("train.py").read_text()
