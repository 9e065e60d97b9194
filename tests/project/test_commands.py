"""Commands that a project installs: the functions that they start are where scripts begin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from commands import write

from dp2ddp.convert import pipeline
from dp2ddp.project import entries
from dp2ddp.project import tree as trees
from dp2ddp.project.modules import Layout
from dp2ddp.rules import Options

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
    tree = trees.scan(folder)
    sources = tree.sources()
    return entries.guess(sources, Layout(sources), entries.started(tree, sources))


def named(folder: Path, files: Mapping[str, str]) -> dict[str, dict[str, str]]:
    write(folder, files)
    tree = trees.scan(folder)
    return entries.started(tree, tree.sources())


@pytest.mark.parametrize("way", SETUP)
def test_setup_py_is_read_and_not_run(tmp_path: Path, way: str) -> None:
    files = {**FILES, "setup.py": f"raise SystemExit('must not run')\n{SETUP[way]}\n"}
    assert named(tmp_path, files) == {"tool/cli.py": {"train": "tool-train"}}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("setup.cfg", "[options.entry_points]\nconsole_scripts =\n    tool-train = tool.cli:train\n"),
        ("pyproject.toml", '[project.scripts]\ntool-train = "tool.cli:train"\n'),
        ("pyproject.toml", '[tool.poetry.scripts]\ntool-train = "tool.cli:train"\n'),
    ],
)
def test_other_files_that_name_commands(tmp_path: Path, name: str, text: str) -> None:
    files = {f"sub/{path}": content for path, content in {**FILES, "setup.py": "", name: text}.items()}
    assert named(tmp_path, files) == {"sub/tool/cli.py": {"train": "tool-train"}}


@pytest.mark.parametrize("text", ["setup(entry_points=points())", "x = dict(a=b)", "f = lambda x=tool: x"])
def test_what_names_no_commands_is_passed_over(tmp_path: Path, text: str) -> None:
    assert named(tmp_path, {**FILES, "setup.py": text}) == {}


def test_commands_of_files_that_import_a_wrap_are_entries(tmp_path: Path) -> None:
    files = {**FILES, "setup.cfg": "[options.entry_points]\nconsole_scripts =\n  other = tool.other:run\n"}
    files["tool/other.py"] = "def run(): pass\n"
    found = guess(tmp_path, files)
    assert (found.entries, found.commands) == (["tool/cli.py"], {"tool/cli.py": {"train": "tool-train"}})


def test_a_script_that_is_also_a_command_starts_them_once() -> None:
    files = {**FILES, "tool/cli.py": FILES["tool/cli.py"] + "if __name__ == '__main__':\n    train()\n"}
    done = pipeline.convert_files(files, {"tool/cli.py": ["train"]}, Options())
    assert done["tool/cli.py"].new_text.count("ddp.setup(") == 1


def test_a_method_may_be_a_command() -> None:
    text = "from torch import nn\nclass App:\n    @staticmethod\n    def main():\n        nn.DataParallel(net)\n"
    done = pipeline.convert_files({"app.py": text}, {"app.py": ["App.main"]}, Options())
    assert "\n\nddp.setup()\nclass App" in done["app.py"].new_text
    assert "        ddp.wrap_model(net)\n" in done["app.py"].new_text
