"""What a user types is read by rank 0, wherever all ranks come by."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_files, convert_source
from dp2ddp.rules import Options

_HEAD = "import getpass\nimport sys\nimport torch\nimport torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n"

ASKED = {
    "value": ("name = input('name? ')\n", "name = ddp.broadcast(ddp.main_only(input)('name? '))\n"),
    "test": (
        "if input().strip() != 'y':\n    sys.exit()\n",
        "if ddp.broadcast(ddp.main_only(input)()).strip() != 'y':\n",
    ),
    "function": (
        "def ask():\n    while True:\n        n = int(input())\n        if n:\n            return n\nask()\n",
        "n = int(ddp.broadcast(ddp.main_only(input)()))\n",
    ),
    "password": (
        "key = getpass.getpass()\n",
        "key = ddp.broadcast(ddp.main_only(getpass.getpass)())\n",
    ),
}


@pytest.mark.parametrize("name", ASKED)
def test_rank_0_asks(name: str) -> None:
    text, expected = ASKED[name]
    conversion = convert_source(_HEAD + text, "train.py", Options())
    assert expected in conversion.new_text
    assert not [note for note in conversion.notes if note.rule == "DDP022"]


@pytest.mark.parametrize(
    "text",
    [
        "def input(prompt):\n    return prompt\nname = input('name? ')\n",
        "class Images:\n    def __getitem__(self, i):\n        return input()\n",
    ],
)
def test_left_alone(text: str) -> None:
    conversion = convert_source(_HEAD + text, "train.py", Options(select=frozenset({"DDP022"})))
    assert conversion.new_text == _HEAD + text


def test_a_handler_asks_nobody_and_says_so() -> None:
    text = "try:\n    net(x)\nexcept KeyboardInterrupt:\n    if input('save? ') == 'y':\n        print(1)\n"
    conversion = convert_source(_HEAD + text, "train.py", Options(select=frozenset({"DDP022"})))
    assert conversion.new_text == _HEAD + text
    assert ["input('save? ') if ddp.is_main()" in note.todo for note in conversion.notes] == [True]


@pytest.mark.parametrize(
    ("kind", "noted"), [(" EOFError", True), ("", True), (" (OSError, Exception)", True), (" ValueError", False)]
)
def test_an_end_of_input_that_the_script_goes_on_from_is_noted(kind: str, noted: bool) -> None:
    text = f"try:\n    n = int(input())\nexcept{kind}:\n    n = 3\n"
    conversion = convert_source(_HEAD + text, "train.py", Options(select=frozenset({"DDP022"})))
    assert "ddp.broadcast(ddp.main_only(input)())" in conversion.new_text
    assert len(conversion.notes) == noted


def test_a_test_that_is_rank_0_s_as_a_whole_is_broadcast_once() -> None:
    text = (
        "import os\nimport time\nstart = time.time()\n"
        "if time.time() - start > 3 and os.path.exists('stop') and input('stop? ') == 'y':\n    net(1)\n"
    )
    conversion = convert_source(_HEAD + text, "train.py", Options())
    assert conversion.new_text.count("ddp.broadcast(") == 1
    assert "os.path.exists('stop') and ddp.main_only(input)('stop? ') == 'y'):" in conversion.new_text


def test_what_an_imported_file_asks_when_it_is_started_doesn_t_matter() -> None:
    files = {
        "train.py": _HEAD.replace("import sys\n", "import sys\nimport data\n") + "data.load()\n",
        "data.py": "def load():\n    return input()\nif __name__ == '__main__':\n    input()\n",
    }
    done = convert_files(files, ["train.py"], Options())["data.py"]
    assert "return ddp.broadcast(ddp.main_only(input)())" in done.new_text
    assert done.new_text.endswith("    input()\n")
    assert not done.notes
