"""What machines read holds what its schemas promise, whatever comes out of a conversion."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import Result
from commands import command, write

from dp2ddp.convert.findings import CHANGE

ROOT = Path(__file__).parents[2]
OURS = json.loads((ROOT / "docs/findings.schema.json").read_text("utf-8"))
SARIF = json.loads((ROOT / "tests/schemas/sarif-2.1.0-rtm.5.json").read_text("utf-8"))
WRAP = "net = nn.DataParallel(nn.Linear(4, 2))\n"
FILES = {
    "train.py": f"import torch.nn as nn, torch, wandb\n\n{WRAP}print(wandb.config.a)\ntorch.save(net, 'net.pt')\n",
    "own.py": f"import torch.distributed as dist\nimport torch.nn as nn\ndist.init_process_group('nccl')\n{WRAP}",
    "odd é.py": "import torch.nn as nn\n\nclass Own(nn.DataParallel):\n    def scatter(self, *a):\n        return a\n\n"
    "net = Own(nn.Linear(4, 2))\n",
    "plain.py": "x = 1\n",
    "old.py": "print 'DataParallel'\n",
    "node_modules/x": "",
}
COMMANDS = [
    ["check", "."],
    ["check", "train.py", "own.py", "odd é.py", "plain.py"],
    ["convert", "train.py"],
    ["convert", "train.py", "plain.py", "-o", "out/", "--force"],
    ["convert", "plain.py"],
    ["convert", "odd é.py"],
    ["convert", ".", "-o", "../formatted", "--force"],
]


def run(*arguments: str) -> Result:
    result = command(*arguments)
    assert result.exit_code in (0, 1, 2), result.output
    return result


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_WORKSPACE",):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path, FILES)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_form_is_valid(command: list[str]) -> None:
    told = json.loads(run(*command, "--format", "json").stdout)
    jsonschema.validate(told, OURS, jsonschema.Draft202012Validator)
    assert ("files" in told) == (command[0] == "convert")
    sarif = json.loads(run(*command, "--format", "sarif").stdout)
    jsonschema.validate(sarif, SARIF, jsonschema.Draft4Validator)
    shown = [each for each in told["findings"] if command[0] == "check" or each["kind"] != CHANGE]
    assert len(sarif["runs"][0]["results"]) == len(shown)
    assert len(run(*command, "--format", "github").stdout.splitlines()) == len(shown)
