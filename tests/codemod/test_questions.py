"""Where the ranks may ask together whether a file is there, and where that would hang."""

from __future__ import annotations

import pytest

from dp2ddp.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = (
    "import os\nimport torch\nimport torch.nn as nn\nfrom pathlib import Path\nnet = nn.DataParallel(nn.Linear(4, 2))\n"
)

ASKED = [
    "if os.path.exists(p):\n    load()\n",
    "if args.resume and os.path.isfile(args.resume):\n    load()\n",
    "while Path(p).exists():\n    p += 'x'\n",
    "state = torch.load(p) if os.path.isfile(p) else None\n",
    "def resume():\n    if not os.path.isfile(p):\n        raise FileNotFoundError(p)\nresume()\n",
]
CLOCKS = [
    "import time\nstart = time.time()\nfor i in range(9):\n    if time.time() - start > 10:\n        print(i)\n",
    "import time\nstart = time.time()\nfor i in range(9):\n"
    "    elapsed = time.time() - start\n    if elapsed > 10:\n        break\n",
    "import logging\nlog = logging.getLogger()\nif log.isEnabledFor(10):\n    print(1)\n",
]
LEFT = [
    "if not os.path.exists(p):\n    os.makedirs(p)\n",
    "if not Path(p).exists():\n    Path(p).mkdir()\n",
    "found = os.path.exists(p)\n",
    "class Images:\n    def __getitem__(self, i):\n        if os.path.exists(i):\n            return i\n",
    "class Reader:\n    def __call__(self, i):\n        if os.path.exists(i):\n            return i\n",
    "def read(i):\n    if os.path.exists(i):\n        return i\n"
    "class Images:\n    def __getitem__(self, i):\n        return read(i)\n",
    "def read(i):\n    if os.path.exists(i):\n        return i\nload = Lambda(read)\n",
]


def converted(body: str) -> str:
    return convert_source(_HEAD + body, "train.py", Options(select=frozenset({"DDP018"}))).new_text


@pytest.mark.parametrize("body", ASKED)
def test_rank_0_answers(body: str) -> None:
    assert converted(body).count("ddp.broadcast(") == 1


@pytest.mark.parametrize("body", CLOCKS)
def test_rank_0_s_clock_decides(body: str) -> None:
    assert "if ddp.broadcast(" in converted(body)


@pytest.mark.parametrize("body", LEFT)
def test_left_alone(body: str) -> None:
    assert converted(body) == _HEAD + body
