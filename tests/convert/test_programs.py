"""Programs of several files: roles and edits that cross from one to another, also to those picked at run time."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dp2ddp.cli import main
from dp2ddp.convert.pipeline import Conversion, convert_files
from dp2ddp.rules import Options


def converted(files: dict[str, str], *entries: str, **options: object) -> dict[str, Conversion]:
    return convert_files(files, entries or ("train.py",), Options(**options))  # type: ignore[arg-type]


def test_setup_stands_above_the_imports_of_the_programs_own_modules() -> None:
    """One of them wraps, or opens a log, while it is imported."""
    files = {
        "train.py": "import os\nfrom model import net\nimport sys\nprint(net)\n",
        "model.py": "import torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n",
    }
    assert converted(files)["train.py"].new_text.splitlines() == [
        "import os",
        "import dp2ddp_runtime as ddp",
        "",
        "ddp.setup()",
        "",
        "from model import net",
        "import sys",
        "print(net)",
    ]


@pytest.mark.parametrize(
    "pick", ['"models." + name', '"models.%s_net" % name', 'f"models.{name}"', '"models.{}".format(name)']
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


def test_what_a_file_does_when_it_is_started_itself_stays_where_others_import_it() -> None:
    """It never runs there: the trial of a model, with a wrap and a loader of its own."""
    trial = (
        "import torch.nn as nn\nfrom torch.utils.data import DataLoader\n\n\n"
        "def build():\n    return nn.Linear(4, 2)\n\n\n"
        'if __name__ == "__main__":\n    net = nn.DataParallel(build())\n    loader = DataLoader([1], 1)\n'
    )
    train = "import torch.nn as nn\nfrom net import build\n\nnet = nn.DataParallel(build())\n"
    files = {"net.py": trial, "train.py": train}
    files["plain.py"] = "from net import build\n\nprint(build())\n"
    done = convert_files(files, ["train.py", "plain.py"], Options())
    assert [name for name, each in done.items() if each.changed] == ["train.py"]
    assert "wrap_model" in convert_files(files, ["net.py"], Options())["net.py"].new_text
