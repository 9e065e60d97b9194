"""Where the ranks' own clocks would part them; what they ask the disk needs no edit."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = (
    "import glob\nimport os\nfrom pathlib import Path\nfrom threading import Thread\n"
    "import torch\nimport torch.nn as nn\nfrom PIL import Image\nnet = nn.DataParallel(nn.Linear(4, 2))\n"
)

CLOCKS = [
    "import time\nstart = time.time()\nfor i in range(9):\n    if time.time() - start > 10:\n        load(i)\n",
    "import time\nstart = time.time()\nfor i in range(9):\n    out = net(x)\n"
    "    if time.time() - start > 10:\n        print(i, out)\n",
    "import time\nstart = time.time()\nfor i in range(9):\n"
    "    elapsed = time.time() - start\n    if elapsed > 10:\n        break\n",
    "import time\nstart = time.time()\ndef is_over():\n    if time.time() - start > 9:\n        return True\n",
    "import time\nstart = 0\ntry:\n    net(x)\nexcept OSError:\n    start = time.time()\n    open(f'{start}', 'w')\n"
    "if start > 9:\n    net(x)\n",
]
#: Rank 0's disk answers all ranks, wherever they ask.
LEFT = [
    "if os.path.exists(p):\n    load()\nfor d in os.listdir(r):\n    for f in os.listdir(d):\n        net(f)\n",
    "try:\n    load()\nexcept OSError:\n    if os.path.exists(p):\n        load()\n",
    "for e in os.scandir(d):\n    if os.path.exists(e.path):\n        load(e)\n",
    "import time\nlast = time.time()\nfor i in range(9):\n    net(x)\n    if time.time() - last > 10:\n"
    "        print(f'step {i}')\n        last = time.time()\n",
    "import time\nfrom tqdm import tqdm\nbar = tqdm(range(9))\nstart = time.time()\nfor i in bar:\n"
    "    loss = nn.functional.mse_loss(net(x), y)\n    if time.time() - start > 1:\n"
    "        bar.set_postfix(loss=loss.item())\n",
    "import time\nclass Bar:\n    def __init__(self):\n        self.last = time.time()\n"
    "    def update(self, n):\n        if time.time() - self.last < 1:\n            return\n"
    "        self.last = time.time()\n        print(n)\nfor i in range(9):\n    Bar().update(i)\n    net(x)\n",
    "import time\np = os.path.join('out', time.strftime('%H%M'))\nif not os.path.exists(p):\n    os.makedirs(p)\n",
    "import time\nstart = time.time()\ndef passed():\n    x = time.time() - start\n    if x > 3600:\n"
    "        return '{:.1f}h'.format(x / 3600)\n    elif x > 60:\n        return '%dm' % x\n    return f'{x}s'\n",
    "if not Path(p).exists():\n    Path(p).mkdir()\n",
    "class Images:\n    def __getitem__(self, i):\n        if os.path.exists(i):\n            return i\n",
]


def converted(body: str) -> str:
    return convert_source(_HEAD + body, "train.py", Options(select=frozenset({"DDP018"}))).new_text


@pytest.mark.parametrize("body", CLOCKS)
def test_rank_0_s_clock_decides(body: str) -> None:
    assert "if ddp.broadcast(" in converted(body)


def test_nothing_is_asked_in_what_the_ranks_run_one_after_the_other() -> None:
    body = "def see():\n    return 1 if os.path.exists('x') else 0\nif not see():\n    os.system('wget -O x y')\n"
    new = convert_source(_HEAD + body, "train.py", Options(select=frozenset({"DDP012", "DDP018"}))).new_text
    assert "with ddp.main_first():\n    if not see():\n        os.system" in new
    assert "broadcast" not in new


@pytest.mark.parametrize("body", LEFT)
def test_left_alone(body: str) -> None:
    assert converted(body) == _HEAD + body
