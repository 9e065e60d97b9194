"""Where the ranks may ask together whether a file is there, and where that would hang."""

from __future__ import annotations

import pytest

from dp2ddp.convert.pipeline import convert_source
from dp2ddp.rules import Options

_HEAD = (
    "import glob\nimport os\nfrom pathlib import Path\nfrom threading import Thread\n"
    "import torch\nimport torch.nn as nn\nfrom PIL import Image\nnet = nn.DataParallel(nn.Linear(4, 2))\n"
)

ASKED = [
    "if os.path.exists(p):\n    load()\n",
    "if args.resume and os.path.isfile(args.resume):\n    load()\n",
    "while Path(p).exists():\n    p += 'x'\n",
    "state = torch.load(p) if os.path.isfile(p) else None\n",
    "def resume():\n    if not os.path.isfile(p):\n        raise FileNotFoundError(p)\nresume()\n",
]
CLOCKS = [
    "import time\nstart = time.time()\nfor i in range(9):\n    if time.time() - start > 10:\n        load(i)\n",
    "import time\nstart = time.time()\nfor i in range(9):\n    out = net(x)\n"
    "    if time.time() - start > 10:\n        print(i, out)\n",
    "import time\nstart = time.time()\nfor i in range(9):\n"
    "    elapsed = time.time() - start\n    if elapsed > 10:\n        break\n",
    "import logging\nlog = logging.getLogger()\nif log.isEnabledFor(10):\n    load(1)\n",
]
#: Each with how often rank 0 is asked, and a line that shows where.
LISTED = {
    "for f in sorted(glob.glob('*.pth')):\n    net(torch.load(f))\n": "in ddp.broadcast(sorted(glob.glob('*.pth'))):",
    "names = os.listdir('data')\n": "names = ddp.broadcast(os.listdir('data'))\n",
    "n = len(os.listdir('data'))\n": "n = ddp.broadcast(len(os.listdir('data')))\n",
    "last = max(glob.glob('*'), key=os.path.getctime)\n": "ddp.broadcast(max(glob.glob('*'), key=os.path.getctime))",
    "a = [f for f in os.listdir(d) if os.path.isfile(os.path.join(d, f))]\n": "a = ddp.broadcast([f for f in os",
    "a = [os.path.join(d, f) for d, _, fs in os.walk(r) for f in fs]\n": "a = ddp.broadcast([os.path.join(d, f) for d",
    "a = sorted(e.name for e in os.scandir(d) if e.is_dir())\n": "a = ddp.broadcast(sorted(e.name for e in os.scan",
    "a = [e.path for e in os.scandir(d)]\n": "a = ddp.broadcast([e.path for e in os.scandir(d)])\n",
    "a = [Image.open(f) for f in os.listdir(d)]\n": "a = [Image.open(f) for f in ddp.broadcast(os.listdir(d))]\n",
    "for p in Path('d').glob('*'):\n    net(p)\n": "for p in ddp.broadcast(list(Path('d').glob('*'))):",
    "for d in os.listdir(r):\n    for f in os.listdir(d):\n        keep(f)\n": "for d in ddp.broadcast(os.listdir(r)):",
    "for d, s, f in os.walk(r):\n    keep(d)\n": "for d, s, f in ddp.broadcast(list(os.walk(r))):",
    "class Images:\n    def __init__(self, d):\n        self.fs = []\n        for f in os.listdir(d):\n"
    "            if os.path.exists(f):\n                self.fs.append(f)\n"
    "    def __getitem__(self, i):\n        return sorted(os.listdir(self.fs[i]))\nImages('d')\n": (
        "for f in ddp.broadcast(os.listdir(d)):"
    ),
    "class Images:\n    def __init__(self, d):\n        if not os.path.exists(d):\n            raise OSError(d)\n"
    "        for i in range(9):\n            if os.path.exists(d + str(i)):\n                print(i)\n"
    "    def __getitem__(self, i):\n        return i\nImages('d')\n": "if not ddp.broadcast(os.path.exists(d)):",
}
#: Functions that all ranks run, though nothing in the script calls them.
RUN_BY_OTHERS = [
    "import fire\ndef main():\n    if os.path.exists('x'):\n        load()\nfire.Fire(main)\n",
    "def main():\n    if os.path.exists('x'):\n        load()\n    net(torch.ones(1, 4))\nlibrary.run(main)\n",
    "def main():\n    if os.path.exists('x'):\n        load()\n    net(x)\nthread = Thread(target=main)\n",
    "def see(n):\n    if os.path.exists('x'):\n        load()\ndef run(f):\n    f(1)\nrun(f=see)\n",
    "class T:\n    def __init__(self, hook):\n        self.hook = hook\n    def go(self):\n        self.hook()\n"
    "def see():\n    if os.path.exists('x'):\n        load()\nT(see).go()\n",
]
LEFT = [
    "try:\n    load()\nexcept OSError:\n    if os.path.exists(p):\n        load()\n",
    "def see():\n    if os.path.exists(p):\n        load()\ntry:\n    see()\nexcept OSError:\n    see()\n",
    "try:\n    os.mkdir(p)\n    if os.path.exists(q):\n        load()\nexcept FileExistsError:\n    load()\n",
    "try:\n    load()\nexcept OSError:\n    for f in sorted(os.listdir(d)):\n        load(f)\n",
    "for e in os.scandir(d):\n    if os.path.exists(e.path):\n        load(e)\n",
    "for d, s, f in os.walk(r):\n    s[:] = []\n    if os.path.exists(d):\n        load(d)\n",
    "files = (f for f in os.scandir(d))\nfor f in files:\n    if os.path.exists(f):\n        net(f)\n",
    "def watch():\n    if os.path.exists(p):\n        load()\nThread(target=watch).start()\n",
    "import time\nlast = time.time()\nfor i in range(9):\n    net(x)\n    if time.time() - last > 10:\n"
    "        print(f'step {i}')\n        last = time.time()\n",
    "import time\nfrom tqdm import tqdm\nbar = tqdm(range(9))\nstart = time.time()\nfor i in bar:\n"
    "    loss = nn.functional.mse_loss(net(x), y)\n    if time.time() - start > 1:\n"
    "        bar.set_postfix(loss=loss.item())\n",
    "import sys\nif sys.stdout.isatty():\n    sys.stdout.write('x')\nelse:\n    print('y')\n",
    "import time\nclass Bar:\n    def __init__(self):\n        self.last = time.time()\n"
    "    def update(self, n):\n        if time.time() - self.last < 1:\n            return\n"
    "        self.last = time.time()\n        print(n)\nfor i in range(9):\n    Bar().update(i)\n    net(x)\n",
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


@pytest.mark.parametrize("body", LISTED)
def test_a_list_is_rank_0_s_and_asked_for_once(body: str) -> None:
    new = converted(body)
    assert LISTED[body] in new
    assert new.count("ddp.broadcast(") == 1


def test_a_question_for_each_file_takes_all_ranks_where_the_loop_does_anyway() -> None:
    body = "for f in sorted(os.listdir(d)):\n    if os.path.exists(f + '.done'):\n        continue\n    net(load(f))\n"
    assert converted(body).count("ddp.broadcast(") == 2


@pytest.mark.parametrize("body", RUN_BY_OTHERS)
def test_a_function_that_is_handed_on_is_like_any_other(body: str) -> None:
    assert "if ddp.broadcast(os.path.exists('x')):" in converted(body)


def test_nothing_is_asked_in_what_the_ranks_run_one_after_the_other() -> None:
    body = "def see():\n    return 1 if os.path.exists('x') else 0\nif not see():\n    os.system('wget -O x y')\n"
    new = convert_source(_HEAD + body, "train.py", Options(select=frozenset({"DDP012", "DDP018"}))).new_text
    assert "with ddp.main_first():\n    if not see():\n        os.system" in new
    assert "broadcast" not in new


@pytest.mark.parametrize("body", LEFT)
def test_left_alone(body: str) -> None:
    assert converted(body) == _HEAD + body
