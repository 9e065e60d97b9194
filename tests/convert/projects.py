"""A project of several scripts, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from commands import command, write

from dp2ddp.convert.pipeline import convert_files
from dp2ddp.rules import Options

GUARD = "if __name__ == '__main__':\n    wrap()\n"
LOADER = "import torch.utils.data\nloader = torch.utils.data.DataLoader([1])\n"
FILES = {
    "train.py": f"from nets import wrap\nimport utils.loaders, plain\n{GUARD}",
    "tools/test.py": f"import sys\nsys.path.append('..')\nfrom nets import wrap\n{GUARD}",
    "nets.py": "from torch import nn\ndef wrap(net):\n    return nn.DataParallel(net)\n",
    "utils/loaders.py": LOADER,
    "plain.py": "x = 1\n",
    "unrelated.py": LOADER,
    "README.md": "DataLoader DataParallel",
}
_PYTHON = {path: text for path, text in FILES.items() if path.endswith(".py")}
_DONE = convert_files(_PYTHON, ["tools/test.py", "train.py"], Options())
#: What is there afterwards: four files have changed.
CONVERTED = {path: _DONE[path].new_text if path in _DONE else text for path, text in FILES.items()}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the folder "project" of the current folder."""
    monkeypatch.chdir(tmp_path)
    write(Path("project"), FILES)
    return Path("project")


def read(folder: Path | str) -> dict[str, str]:
    """All files below a folder, but for the runtime's."""
    paths = [path for path in sorted(Path(folder).rglob("*")) if path.is_file() and "dp2ddp_runtime" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_text() for path in paths}


def run(*args: str) -> Result:
    return command("convert", *args)
