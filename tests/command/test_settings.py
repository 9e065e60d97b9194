"""`[tool.dp2ddp]`: found from the input upwards, checked by line, overridden by the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import command as run

from dp2ddp.command import settings
from dp2ddp.command.settings import nearest

SCRIPT = """\
import cv2, torch
import torch.nn as nn
net = nn.DataParallel(nn.Linear(4, 2))
loader = torch.utils.data.DataLoader(torch.rand(8, 4))
cv2.imwrite("weights.png", net.module.weight)
torch.save(net, "net.pt")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a script in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/train.py").write_text(SCRIPT)
    return tmp_path


def says(text: str, folder: str = ".") -> None:
    Path(folder, "pyproject.toml").write_text(text)


def rules_of(*arguments: str) -> dict[str, str]:
    told = json.loads(run("check", *arguments, "--format", "json").stdout)
    return {each["rule"]: each["kind"] for each in told["findings"]}


@pytest.mark.usefixtures("folder")
def test_the_nearest_file_that_speaks_of_us_counts() -> None:
    says('[tool.dp2ddp]\nignore = ["ddp011"]\n')
    assert rules_of("tools/train.py")["DDP011"] == "note"
    assert rules_of("tools")["DDP011"] == "note"
    says("[tool.ruff]\nline-length = 100  # not dp2ddp\n", "tools")
    assert rules_of("tools/train.py")["DDP011"] == "note"
    says("[tool.dp2ddp]\n", "tools")
    assert rules_of("tools/train.py")["DDP011"] == "change"


@pytest.mark.usefixtures("folder")
def test_the_command_line_counts_more() -> None:
    says('[tool.dp2ddp]\nignore = ["DDP011"]\nstrict = true\nquiet = true\n')
    strict = run("convert", "tools/train.py", "-o", "a.py")
    assert strict.exit_code == 1
    assert strict.stderr == "dp2ddp: notes are open, which --strict doesn't allow; without --quiet they are listed\n"
    loose = run("convert", "tools/train.py", "-o", "b.py", "--no-strict", "--no-quiet")
    assert loose.exit_code == 0
    assert "1 note for a person to look at" in loose.stderr
    assert rules_of("tools/train.py", "--ignore", "DDP008") == {
        **rules_of("tools/train.py", "--isolated"),
        "DDP008": "note",
    }


@pytest.mark.usefixtures("folder")
def test_a_table_of_the_command_s_own_counts_more_than_the_shared_one() -> None:
    says('[tool.dp2ddp]\nformat = "json"\n[tool.dp2ddp.check]\nformat = "github"\n[tool.dp2ddp.verify]\nnproc = 3\n')
    assert run("check", "tools/train.py").stdout.startswith("::notice file=tools/train.py")
    assert json.loads(run("convert", "tools/train.py").stdout)["version"] == 1


@pytest.mark.usefixtures("folder")
def test_paths_are_seen_from_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    says('[tool.dp2ddp]\noutput = "converted/"\nentry = ["tools/train.py"]\nvendor = true\n')
    monkeypatch.chdir("tools")
    assert run("convert", "train.py").exit_code == 0
    assert sorted(path.name for path in Path("../converted").iterdir()) == ["dp2ddp_runtime", "train.py"]
    monkeypatch.chdir("..")
    assert json.loads(run("convert", "tools", "-o", "other", "--format", "json").stdout)["entries"] == [
        "tools/train.py"
    ]


@pytest.mark.usefixtures("folder")
def test_what_makes_no_sense_for_the_command_line_is_left_out() -> None:
    says('[tool.dp2ddp]\nvendor = true\nentry = ["tools/train.py"]\nformat = "json"\n')
    to_stdout = run("convert", "tools/train.py", "-o", "-")
    assert (to_stdout.exit_code, to_stdout.stderr.splitlines()[0]) == (0, "tools/train.py: 5 changes")
    says("[tool.dp2ddp]\nin-place = true\n")
    assert run("convert", "tools/train.py", "-o", "out.py").exit_code == 0
    assert Path("tools/train.py").read_text() == SCRIPT
    says('[tool.dp2ddp]\noutput = "out/"\n')
    assert run("convert", "tools/train.py", "--in-place").exit_code == 0
    assert "ddp.wrap_model" in Path("tools/train.py").read_text()
    assert not Path("out").exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.dp2ddp]\n\nstrct = true\n", "pyproject.toml:3: no setting 'strct'; did you mean strict?"),
        ('[tool.dp2ddp]\nstrict = "yes"\n', "pyproject.toml:2: 'strict' must be true or false"),
        ('[tool.dp2ddp]\nignore = "DDP011"\n', "pyproject.toml:2: 'ignore' must be a list of strings"),
        (
            '[tool.dp2ddp]\nignore = [\n  "DDP011",\n  "DDP0111",\n]\n',
            "pyproject.toml:4: no rule 'DDP0111'; did you mean DDP011? `dp2ddp rules` lists them",
        ),
        ('[tool]\ndp2ddp.ignore = ["DDP002"]\n', "pyproject.toml:2: DDP002 can't be left out (Wrap the model in"),
        (
            '[tool.dp2ddp]\n"output-format" = "jsn"\n',
            "pyproject.toml:2: 'output-format': 'jsn' is not one of 'full', 'concise', 'json', 'github', 'gitlab', "
            "'sarif', 'text'",
        ),
        ("[tool.dp2ddp]\nnproc = 2\n", "pyproject.toml:2: no setting 'nproc'; write it in [tool.dp2ddp.verify]"),
        ("[tool.dp2ddp.verify]\nnproc = true\n", "pyproject.toml:2: 'nproc' must be a string or a number"),
        ("[tool]\ndp2ddp = 1\n", "pyproject.toml:2: `tool.dp2ddp` must be a table; write [tool.dp2ddp]"),
        ("[tool.dp2ddp]\nstrict = yes\n", "pyproject.toml:2:10: no TOML: Invalid value"),
    ],
)
def test_mistakes_are_named_by_their_line(text: str, message: str) -> None:
    says(text)
    for command in ("check", "convert"):
        result = run(command, "tools/train.py")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"dp2ddp: {message}")
        assert result.stderr.count("\n") == 1
    assert run("check", "tools/train.py", "--isolated").exit_code == 1


@pytest.mark.usefixtures("folder")
def test_inputs_with_different_settings_are_refused() -> None:
    Path("train.py").write_text(SCRIPT)
    says("[tool.dp2ddp]\n")
    says("[tool.dp2ddp]\n", "tools")
    result = run("check", "train.py", "tools/train.py")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "dp2ddp: pyproject.toml: the inputs have different settings: pyproject.toml for train.py, "
        "tools/pyproject.toml for tools/train.py"
    )


@pytest.mark.usefixtures("folder")
def test_every_option_of_convert_and_check_can_be_set() -> None:
    values = {"a list of strings": "[]", "true or false": "false", "a string": '"auto"'}
    special = {"output-format": '"concise"', "output": '"out/"', "entry": "[]", "ignore": "[]", "html": '"report.html"'}
    for command in ("convert", "check"):
        words = run(command, "--help").stdout
        names = set(re.findall(r"^  (?:-\w, |    )?--([a-z-]+)", words, re.MULTILINE)) - {"help", "isolated"}
        assert {"strict", "output"} <= names or command == "check"
        for name in names:
            value = special.get(name) or ('"auto"' if name == "color" else values["true or false"])
            says(f"[tool.dp2ddp.{command}]\n{name} = {value}\n")
            assert run(command, "tools/train.py").exit_code in (0, 1), run(command, "tools/train.py").output


@pytest.mark.usefixtures("folder")
def test_toml_is_read_only_where_it_may_speak_of_us(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(settings, "_parsed", lambda text: read.append(text) or {})
    says("[tool.ruff]\n")
    assert nearest(Path("tools")) is None
    assert not read
    says("# dp2ddp\n[tool.ruff]\n")
    assert nearest(Path("tools")) is None
    assert read


@pytest.mark.usefixtures("folder")
def test_functions_that_the_catalogue_does_not_have() -> None:
    script = "import torch.nn as nn\nimport mylib\nnet = nn.DataParallel(nn.Linear(4, 2))\nmylib.dump(net, 'net.bin')\n"
    Path("tools/train.py").write_text(script)
    assert "main_only" not in run("convert", "tools/train.py").stdout
    says('[tool.dp2ddp.functions]\n"mylib.dump" = "writes"\n')
    assert "+ddp.main_only(mylib.dump)(net, 'net.bin')" in run("convert", "tools/train.py").stdout
    assert "DDP011" in run("check", "tools/train.py").stdout


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('"mylib.dump" = "writed"', "'functions': 'writed' is nothing that a function does: names, reports, seeds, "),
        ('"my lib" = "writes"', "'my lib' is no name of a function, as in 'package.module.function'"),
        ("functions = 1", "'functions' must be a table"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_the_catalogue_can_not_take(line: str, what: str) -> None:
    says(f"[tool.dp2ddp]\n{line}\n" if line.startswith("functions") else f"[tool.dp2ddp.functions]\n{line}\n")
    done = run("convert", "tools/train.py")
    assert done.exit_code == 2
    assert done.stderr.startswith("dp2ddp: pyproject.toml:2: "), done.stderr
    assert what in done.stderr
