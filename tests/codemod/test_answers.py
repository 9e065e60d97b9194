"""What a user types is read by rank 0, wherever all ranks come by."""

from __future__ import annotations

import pytest

from dp2ddp.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = "import getpass\nimport sys\nimport torch\nimport torch.nn as nn\nnet = nn.DataParallel(nn.Linear(4, 2))\n"

ASKED = {
    "value": ("name = input('name? ')\n", "name = ddp.broadcast(input('name? ') if ddp.is_main() else None)\n"),
    "test": (
        "if input().strip() != 'y':\n    sys.exit()\n",
        "if ddp.broadcast(input() if ddp.is_main() else None).strip() != 'y':\n",
    ),
    "function": (
        "def ask():\n    while True:\n        n = int(input())\n        if n:\n            return n\nask()\n",
        "n = int(ddp.broadcast(input() if ddp.is_main() else None))\n",
    ),
    "password": (
        "key = getpass.getpass()\n",
        "key = ddp.broadcast(getpass.getpass() if ddp.is_main() else None)\n",
    ),
    "line": (
        "line = sys.stdin.readline()\n",
        "line = ddp.broadcast(sys.stdin.readline() if ddp.is_main() else None)\n",
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
    assert "ddp.broadcast(input() if ddp.is_main() else None)" in conversion.new_text
    assert len(conversion.notes) == noted
