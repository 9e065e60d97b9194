"""Commands that a project installs: the functions that they start are where scripts begin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from commands import write

from dp2ddp.convert import pipeline
from dp2ddp.project import commands, entries
from dp2ddp.project.commands import Command
from dp2ddp.project.modules import Layout
from dp2ddp.project.python_files import PythonFiles
from dp2ddp.rules import Options

TRAIN = Command("tool-train", "tool.cli", "train", "")
SETUP = {
    "a list": "setup(entry_points={'console_scripts': ['tool-train = tool.cli:train', 'broken']})",
    "a text": "setup(entry_points={'console_scripts': 'tool-train=tool.cli:train [extra]'})",
    "an ini text": 'setup(entry_points="""\n[console_scripts]\ntool-train = tool.cli:train\n""")',
}
FILES = {
    "setup.py": "raise SystemExit('must not run')\n" + SETUP["a list"],
    "tool/__init__.py": "",
    "tool/cli.py": "import argparse\nimport logging\nfrom tool.engine import run\n"
    "logging.getLogger('tool').setLevel(10)\n"
    "def prepare():\n    print('ready')\n"
    "def train():\n    args = argparse.ArgumentParser().parse_args()\n    print(args)\n    run(args)\n",
    "tool/engine.py": "from torch import nn\ndef run(args):\n    return nn.DataParallel(nn.Linear(2, 2))\n",
}


def guess(folder: Path, files: Mapping[str, str]) -> entries.Entries:
    write(folder, files)
    sources = PythonFiles(folder, [path for path in files if path.endswith(".py")])
    return entries.guess(sources, Layout(sources), commands.read(folder, files))


@pytest.mark.parametrize("way", SETUP)
def test_setup_py_is_read_and_not_run(tmp_path: Path, way: str) -> None:
    write(tmp_path, {"setup.py": f"raise SystemExit('must not run')\n{SETUP[way]}\n"})
    assert commands.read(tmp_path, ["setup.py"]) == [TRAIN]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("setup.cfg", "[options.entry_points]\nconsole_scripts =\n    tool-train = tool.cli:train\n"),
        ("pyproject.toml", '[project.scripts]\ntool-train = "tool.cli:train"\n'),
        ("pyproject.toml", '[project.gui-scripts]\ntool-train = "tool.cli:train"\n'),
    ],
)
def test_other_files_that_name_commands(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path, {f"sub/{name}": text})
    assert commands.read(tmp_path, [f"sub/{name}", "README.md"]) == [TRAIN._replace(folder="sub")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("setup.py", "setup(entry_points=points())"),
        ("setup.cfg", "no section"),
        ("pyproject.toml", "[project"),
    ],
)
def test_what_names_no_commands_is_passed_over(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path, {name: text})
    assert commands.read(tmp_path, [name]) == []


@pytest.mark.parametrize(
    ("module", "folder", "file"),
    [
        ("tool.cli", "", "tool/cli.py"),
        ("tool", "", "tool/__init__.py"),
        ("cli", "", None),
    ],
)
def test_modules_are_found_where_packages_lie(module: str, folder: str, file: str | None) -> None:
    files = ["tool/cli.py", "tool/__init__.py", "libs/src/other/cli.py", "python/deep/cli.py"]
    assert commands.module_file(module, folder, files) == file


def test_commands_that_come_to_a_wrap_are_entries(tmp_path: Path) -> None:
    files = {**FILES, "setup.cfg": "[options.entry_points]\nconsole_scripts =\n  prepare = tool.cli:prepare\n"}
    found = guess(tmp_path, files)
    assert (found.entries, found.commands) == (["tool/cli.py"], {"tool/cli.py": {"train": "tool-train"}})


def test_a_script_that_is_also_a_command_starts_them_once() -> None:
    files = {**FILES, "tool/cli.py": FILES["tool/cli.py"] + "if __name__ == '__main__':\n    train()\n"}
    done = pipeline.convert_files(files, {"tool/cli.py": ["train"]}, Options())
    assert done["tool/cli.py"].new_text.count("ddp.setup(") == 1


def test_a_method_may_be_a_command() -> None:
    text = "from torch import nn\nclass App:\n    @staticmethod\n    def main():\n        nn.DataParallel(net)\n"
    done = pipeline.convert_files({"app.py": text}, {"app.py": ["App.main"]}, Options())
    assert "        ddp.setup()\n        ddp.wrap_model" in done["app.py"].new_text
