"""Code in the pages does what the pages say: it parses, converts, runs, and prints the same on two ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import blocks
import pytest
from blocks import Block
from commands import command
from starts import Warm

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

BLOCKS = blocks.all_blocks()
PYTHON = [block for block in BLOCKS if block.language == "python"]
#: Scripts that others refer to by name.
FILES = [block for block in PYTHON if block.comment.startswith("file: ")]
#: Whole scripts, before and after.
DIFFS = [block for block in BLOCKS if block.language == "diff" and not block.comment.startswith("printed by")]
#: Scripts that were written for the runtime.
BY_HAND = [block for block in PYTHON if "ddp.setup()" in block.text and not block.comment]
CONVERTS = [block for block in BLOCKS if block.comment.startswith("printed by: dp2ddp convert")]
VERIFIES = [block for block in BLOCKS if block.comment.startswith("printed by: dp2ddp verify")]
PRINTED = [block for block in BLOCKS if block.comment == "printed by: python train_ddp.py"]
_RUNNER = """
import os, sys, torch
torch.set_num_threads(1)
if {ranks} > 1:
    import dp2ddp_runtime
    dp2ddp_runtime.setup()
for name, text in {scripts!r}:
    os.makedirs(name, exist_ok=True)
    os.chdir(name)
    sys.argv = ["train.py"]
    print("==", name)
    exec(compile(text, name, "exec"), {{"__name__": "__main__"}})
    os.chdir({folder!r})
"""


def run(warm: Warm, folder: Path, scripts: dict[str, str], ranks: int) -> dict[str, str]:
    """What each script prints. They run one after the other in the same processes: importing torch takes seconds."""
    folder.mkdir()
    named = [(name.replace("/", "-"), text) for name, text in scripts.items()]
    runner = folder / "runner.py"
    runner.write_text(_RUNNER.format(ranks=ranks, scripts=named, folder=str(folder)))
    result = warm.start(runner, nproc=ranks, cwd=folder, forked=ranks > 1)
    assert result.returncode == 0, result.stderr
    _, *parts = re.split(r"^== (.*)\n", result.stdout, flags=re.MULTILINE)
    return dict(zip(scripts, parts[1::2]))


def converted(block: Block) -> str:
    return convert_source(block.text, "train.py", Options()).new_text


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_is_python(block: Block) -> None:
    """But for the lines of a notebook's cell that are IPython's."""
    ast.parse(re.sub(r"^[%!].*", "", block.text, flags=re.MULTILINE))


@pytest.mark.parametrize("block", DIFFS, ids=str)
def test_what_is_shown_before_and_after_is_a_conversion(block: Block) -> None:
    before, after = blocks.before_and_after(block.text)
    conversion = convert_source(before, "train.py", Options())
    assert conversion.new_text == after
    assert not conversion.notes


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What the command prints to standard output that a block's comment names, in a folder with the pages' scripts."""
    for file in FILES:
        (tmp_path / file.comment.removeprefix("file: ")).write_text(file.text)
    monkeypatch.chdir(tmp_path)

    def call(block: Block) -> str:
        result = command(*block.comment.removeprefix("printed by: dp2ddp ").split())
        assert result.exit_code == 0, result.output
        return result.stdout

    return call


@pytest.mark.parametrize("block", CONVERTS, ids=str)
def test_what_convert_prints_is_what_is_shown(block: Block, told: Callable[[Block], str]) -> None:
    assert told(block) == block.text


@pytest.mark.usefixtures("quick_starts")
def test_verify_begins_with_what_is_shown(told: Callable[[Block], str]) -> None:
    (command,) = {block.comment for block in VERIFIES}
    output = " ".join(told(VERIFIES[0]).split())
    assert {block.page: output.startswith(" ".join(block.text.split())) for block in VERIFIES} == {
        "README.md": True,
        "docs/quickstart.md": True,
    }, command


def test_scripts_print_the_same_on_two_ranks(warm: Warm, tmp_path: Path) -> None:
    originals = {str(block): blocks.before_and_after(block.text)[0] for block in DIFFS if not block.comment}
    conversions = {str(block): blocks.before_and_after(block.text)[1] for block in DIFFS if not block.comment}
    originals.update((str(block), block.text) for block in FILES)
    conversions.update((str(block), converted(block)) for block in FILES)
    by_hand = {str(block): block.text for block in BY_HAND}
    assert len(originals) >= 4
    assert len(by_hand) >= 4
    expected = run(warm, tmp_path / "alone", {**originals, **by_hand}, ranks=1)
    got = run(warm, tmp_path / "two", {**conversions, **by_hand}, ranks=2)
    for name in originals:
        assert expected[name]
        assert got[name] == expected[name], name
    # (What is written by hand has its own assertions.)
    for block in PRINTED:
        assert block.text in [got[str(file)] for file in FILES if file.page == block.page]
