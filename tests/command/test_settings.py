"""`[tool.dp2ddp.functions]`: found from the input upwards, and checked by line."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import command as run

SCRIPT = "import torch.nn as nn\nimport mylib\nnet = nn.DataParallel(nn.Linear(4, 2))\nmylib.dump(net, 'net.bin')\n"
CONVERTED = "+ddp.main_only(mylib.dump)(net, 'net.bin')"
SETTINGS = '[tool.dp2ddp.functions]\n"mylib.dump" = "writes"\n'


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project with a script in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/train.py").write_text(SCRIPT)


def says(text: str, folder: str = ".") -> None:
    Path(folder, "pyproject.toml").write_text(text)


def test_functions_that_the_catalogue_does_not_have() -> None:
    assert "main_only" not in run("convert", "tools/train.py").stdout
    says(SETTINGS)
    assert CONVERTED in run("convert", "tools/train.py").stdout
    assert CONVERTED in run("convert", "tools").stdout
    assert "DDP011" in run("check", "tools/train.py").stdout


def test_the_nearest_file_that_speaks_of_us_counts() -> None:
    says(SETTINGS)
    says("[tool.ruff]\nline-length = 100  # not dp2ddp\n", "tools")
    assert CONVERTED in run("convert", "tools/train.py").stdout
    says("[tool.dp2ddp]\n", "tools")
    assert CONVERTED not in run("convert", "tools/train.py").stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.dp2ddp]\nstrict = true\n", ": [tool.dp2ddp] has one table, [tool.dp2ddp.functions]; options stand"),
        ('[tool.dp2ddp.functions]\n"mylib.dump" = "writed"\n', ": 'writed' is nothing that a function does: names, "),
        ('[tool.dp2ddp.functions]\n"my lib" = "writes"\n', ": 'my lib' is no name of a function, as in "),
        ("[tool.dp2ddp]\nfunctions = 1\n", ": [tool.dp2ddp] has one table"),
        ("[tool]\ndp2ddp = 1\n", ": [tool.dp2ddp] has one table"),
        ("[tool.dp2ddp]\nstrict = yes\n", ": no TOML: Invalid value (at line 2, column 10)"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    says(text)
    for command in ("check", "convert"):
        result = run(command, "tools/train.py")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"dp2ddp: pyproject.toml{message}")
        assert result.stderr.count("\n") == 1
