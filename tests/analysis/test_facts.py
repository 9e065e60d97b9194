"""What rules may ask: facts, and nothing that guesses. Which files a conversion is about."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from dp2ddp.analysis.facts import Facts
from dp2ddp.convert.pipeline import convert_files
from dp2ddp.rules import Options
from dp2ddp.source.program import link

ROOT = Path(__file__).parents[2] / "dp2ddp"
#: What rules may import of the analysis: the facts, and what names their answers.
ALLOWED = {"facts": {"Facts"}, "catalogue": {"MAIN_ONLY"}, "loaders": {"collates"}}
EMPTY = Facts(link({"x.py": ""}, ["x.py"], lambda *asked: None))
#: Such questions can be answered by running a script alone; the runtime does.
GUESSES = re.compile(r"reach|same|how_many|only_shows|devices|never|value_of|feeds")


@pytest.mark.parametrize("path", sorted((ROOT / "rules").glob("*.py")), ids=lambda path: path.stem)
def test_rules_ask_the_facts_alone(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dp2ddp.analysis"):
            file = (node.module or "").removeprefix("dp2ddp.analysis").removeprefix(".")
            assert {alias.name for alias in node.names} <= ALLOWED.get(file, set())
        if isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.startswith("dp2ddp.analysis")]


def test_the_facts_are_one_short_file_without_a_guess() -> None:
    assert len((ROOT / "analysis/facts.py").read_text("utf-8").splitlines()) <= 400
    asked = {
        f"{kind.__name__}.{name}"
        for kind in (
            Facts,
            *(type(getattr(EMPTY, n)) for n in ("classes", "loaders", "wraps")),
        )
        for name, _ in inspect.getmembers(kind)
    }
    assert "Facts.qualified" in asked
    assert not [name for name in asked if GUESSES.search(name)]


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
