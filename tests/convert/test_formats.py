"""What machines read holds what its schemas promise, whatever comes out of a conversion."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import Result
from commands import command, write

from dp2ddp.convert.findings import CHANGE, NOTE, Found
from dp2ddp.convert.formats import JSON_VERSION, as_github, as_sarif

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
    ["check", "plain.py"],
    ["convert", "train.py"],
    ["convert", "train.py", "plain.py", "-o", "out/", "--force"],
    ["convert", "plain.py"],
    ["convert", "odd é.py"],
    ["convert", "."],
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


def test_the_commands_above_find_everything_that_there_is() -> None:
    """So that the test above speaks of every kind of finding."""
    found = json.loads(run("check", ".", "--format", "json").stdout)["findings"]
    assert {each["kind"] for each in found} == {"change", "note", "refused"}
    assert {each["rule"] for each in found} >= {"DDP002", "DDP011", "DDP016", ""}
    told = json.loads(run("convert", ".", "--format", "json").stdout)
    assert told["left_alone"]
    assert told["left_out"]


def test_the_schema_is_of_this_version_and_knows_a_mistake() -> None:
    jsonschema.Draft202012Validator.check_schema(OURS)
    assert OURS["properties"]["version"] == {"const": JSON_VERSION}
    for wrong in ({"version": 2, "findings": []}, {"version": 1}, {"version": 1, "findings": [], "more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, OURS)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"version": "2.1.0", "runs": [{}]}, SARIF)


def test_services_get_names_from_the_top_of_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Found("train.py", None, 3, 1, "DDP011", NOTE, "x"), Found("/else/a b.py", None, 1, 1, "", NOTE, "y")]
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path.parent))
    assert as_github(found).splitlines()[0].startswith(f"::warning file={tmp_path.name}/train.py,line=3")
    uris = [
        result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for result in json.loads(as_sarif(found))["runs"][0]["results"]
    ]
    assert uris == [f"{tmp_path.name}/train.py", "file:///else/a%20b.py"]
