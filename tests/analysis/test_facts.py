"""What rules may ask: the facts alone. Which files a conversion is about."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from dp2ddp.convert.pipeline import convert_files
from dp2ddp.rules import Options

ROOT = Path(__file__).parents[2] / "dp2ddp"
#: What rules may import of the analysis: the facts, and what names their answers.
ALLOWED = {"facts": {"Facts"}, "catalogue": {"MAIN_ONLY"}, "loaders": {"collates"}}


@pytest.mark.parametrize("path", sorted((ROOT / "rules").glob("*.py")), ids=lambda path: path.stem)
def test_rules_ask_the_facts_alone(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dp2ddp.analysis"):
            file = (node.module or "").removeprefix("dp2ddp.analysis").removeprefix(".")
            assert {alias.name for alias in node.names} <= ALLOWED.get(file, set())
        if isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.startswith("dp2ddp.analysis")]


_WRAPS = (
    "import torch\nimport torch.nn as nn\ndef wrap(net):\n    torch.save(net, 'x')\n    return nn.DataParallel(net)\n"
)
_OTHER = "import torch\nimport torch.nn as nn\ntorch.save(nn.Linear(4, 2), 'x')\n"


def test_a_file_in_the_closure_is_converted_whole_and_no_other_is() -> None:
    files = {
        "train.py": "import wraps\nimport other\n",
        "wraps.py": f"{_WRAPS}def unused():\n    torch.save(1, 'y')\n",
        "other.py": _OTHER,
        "export.py": f"import other\n{_OTHER}",
    }
    done = convert_files(files, ["train.py", "export.py"], Options())
    assert done["train.py"].new_text == "import dp2ddp_runtime as ddp\n\nddp.setup()\n\nimport wraps\nimport other\n"
    assert done["wraps.py"].new_text.count("ddp.save(") == 2
    assert "setup" not in done["wraps.py"].new_text + done["other.py"].new_text
    assert "ddp.save(" in done["other.py"].new_text
    assert not done["export.py"].changed


def test_what_two_scripts_share_is_converted_once_and_each_that_wraps_has_a_setup() -> None:
    files = {"a.py": "import wraps\n", "b.py": "from wraps import wrap\n", "wraps.py": _WRAPS, "c.py": "print(1)\n"}
    done = convert_files(files, ["a.py", "b.py", "c.py"], Options())
    assert [name for name in done if "ddp.setup()" in done[name].new_text] == ["a.py", "b.py"]
